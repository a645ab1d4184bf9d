"""Pages as a reader uses them: code to run, files to write, commands to type, in order.

A fence says what its block is: `python` is run; `python title="name.py"`, `toml title=...` is a file that the reader
writes; `toml` is read; `sh` is typed, line by line; `diff` is a change to make; `text` is output. In an indented block
a line that starts with the name of a command is typed too.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shlex
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
LANGUAGES = ("python", "toml", "sh", "text", "diff", "bibtex")
CLIENTS = ("accelerate", "lightning", "peft", "timm", "transformers")
"""Libraries that a block may import; such blocks are run in the slow tier and skipped where a library is missing."""

WORDS = ("inexact-muon", "make", "python", "torchrun", "pip")
FENCE = re.compile(r"^( *)```(\w*) *(.*)$")


@dataclass(frozen=True)
class Block:
    """A block of a page; `title` is the file that it belongs into."""

    page: str
    line: int
    language: str
    title: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[Block]:
    """Fenced and indented blocks, in order."""
    lines, found, k = page.read_text().splitlines(), [], 0
    while k < len(lines):
        start, fence = k, FENCE.match(lines[k])
        k += 1
        if fence:
            while lines[k].strip() != "```":
                k += 1
            title = re.search(r'title="([^"]+)"', fence[3])
            text = textwrap.dedent("\n".join(lines[start + 1 : k])) + "\n"
            found.append(Block(name(page), start + 1, fence[2], title[1] if title else "", text))
            k += 1
        elif re.match(r" {4,}\S", lines[start]):
            while k < len(lines) and re.match(r" {4,}\S", lines[k]):
                k += 1
            text = textwrap.dedent("\n".join(lines[start:k])) + "\n"
            found.append(Block(name(page), start + 1, "indented", "", text))
    return found


def commands(block: Block) -> list[str]:
    """What a reader types, without comments; a backslash continues a line."""
    if block.language not in ("sh", "indented"):
        return []
    typed = []
    for line in block.text.replace("\\\n", " ").splitlines():
        words = line.split()
        if words and (block.language == "sh" or words[0] in WORDS) and not line.startswith("#"):
            typed.append(re.sub(r"\s+", " ", re.split(r"\s#\s", line)[0]).strip())
    return typed


def every_command() -> list[tuple[Block, str]]:
    return [(block, command) for page in PAGES for block in blocks(page) for command in commands(block)]


def tools(folder: Path, source: Path) -> Path:
    """Commands that are those of this test's environment, with the package from `source`."""
    folder.mkdir(parents=True, exist_ok=True)
    for tool, words in {
        "inexact-muon": ("-m", "inexact_muon_lab"),
        "python": (),
        "torchrun": ("-m", "torch.distributed.run"),
        "ruff": ("-m", "ruff"),
        "mypy": ("-m", "mypy"),
    }.items():
        script = folder / tool
        start = f"PYTHONPATH={shlex.quote(str(source))} exec {shlex.join((sys.executable, *words))}"
        script.write_text(f'#!/bin/sh\n{start} "$@"\n')
        script.chmod(0o755)
    return folder


def environment(folder: Path, source: Path) -> dict[str, str]:
    """A shell with these tools."""
    path = os.pathsep.join((str(tools(folder / ".tools", source)), os.environ["PATH"]))
    return {**os.environ, "PATH": path, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}


def checkout(folder: Path) -> Path:
    """A folder from which the repository's files have the names that the pages use."""
    for part in ("studies", "benchmarks", "examples"):
        if (ROOT / part).exists():
            (folder / part).symlink_to(ROOT / part)
    return folder


def type_in(command: str, folder: Path, source: Path = ROOT / "src") -> str:
    """The command's output; an error shows it all."""
    words, shell = ["sh", "-ec", command], environment(folder, source)
    done = subprocess.run(words, cwd=folder, env=shell, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def libraries(block: Block) -> set[str]:
    """The client libraries that a block of Python imports."""
    if block.language != "python":
        return set()
    nodes = list(ast.walk(ast.parse(block.text)))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.split(".")[0] for name in names} & set(CLIENTS)


def run_python(page: Path) -> int:
    """The page's code in the current folder and one namespace, as in a notebook; files are written. How many ran.

    Blocks that import a client library are left out: each of them stands alone.
    """
    space: dict[str, object] = {"__name__": "__page__"}
    return sum(run_block(block, space) for block in blocks(page) if not libraries(block))


def run_block(block: Block, space: dict[str, object], folder: Path | None = None) -> bool:
    """Runs, reads or writes one block that is not a command; whether code ran."""
    if block.title:
        target = (folder or Path.cwd()) / block.title
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(block.text)
    if block.language == "toml":
        tomllib.loads(block.text)
    if block.language != "python":
        return False
    code = compile("\n" * block.line + block.text, block.page, "exec")
    if not block.title:
        exec(code, space)
    return not block.title


def targets(command: str) -> Iterator[str]:
    """Make targets of a command."""
    words = shlex.split(command)
    if words[0] == "make":
        yield from (word for word in words[1:] if "=" not in word and not word.startswith("-"))


def load_module(path: Path) -> ModuleType:
    """A script of the repository as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
