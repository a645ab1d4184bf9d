"""Every block of code and every command of README and docs is run, so none can rot; CONTRIBUTING: test_recipes."""

from __future__ import annotations

import inspect
import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from commands import said
from inexact_muon import Muon, polar
from inexact_muon_lab.cli import COMMANDS
from inexact_muon_lab.store import store
from pages import (
    CLIENTS,
    LANGUAGES,
    PAGES,
    ROOT,
    Block,
    blocks,
    checkout,
    commands,
    every_command,
    libraries,
    name,
    run_block,
    run_python,
    targets,
    type_in,
)
from torch_features import HAS_MUON, NO_MUON
from torchvision_stub import import_timm

FAST = " --set steps=3 validation=1 evaluate_every=0 telemetry.every=2"
"""What makes a sweep short; everything else of the command is as written."""

GPT2 = {"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 2, "n_positions": 64, "vocab_size": 256}

SHORTER = {
    "inexact-muon sweep studies/tiny/gpt-iterations.toml --out runs/gpt --workers 2": FAST,
    "inexact-muon sweep studies/tiny/cnn-iterations.toml --out runs/cnn --workers 2": FAST,
    "inexact-muon sweep my_study.toml": FAST,
    "inexact-muon sweep studies/tiny/gpt-iterations.toml --out runs/more --packed gpt.pack --set seed=[1,2]": FAST,
    "inexact-muon run run.toml": FAST,
    "inexact-muon decide grid.toml --out runs/mine --budget 2m": " --budget 20s",
    "inexact-muon decide decide.toml --out runs/decide --budget 40m": " --budget 20s",
}

ELSEWHERE = {
    "make demo": ("tests/test_report_demo.py", "minutes: there with fewer studies"),
    "make test-slow": (".ci/run", "CI itself"),
    "make test-long": ("docs/releases.md", "an hour: by hand before a release"),
    "make test-oldest": ("docs/releases.md", "gigabytes: by hand before a release"),
    "make docs": (".ci/run", "CI itself"),
    "make test lint types": (".ci/run", "CI itself"),
    "inexact-muon demo": ("tests/test_report_demo.py", "minutes: there with fewer studies"),
    "inexact-muon report runs/demo --open": ("tests/test_report_pages.py", "opens a browser"),
    "inexact-muon report runs/demo --out page": ("tests/test_report_pages.py", "needs the page of the demo"),
    "inexact-muon report runs/gpt --watch": ("tests/test_report_pages.py", "ends by Ctrl-C"),
    "inexact-muon report runs/gpt --serve": ("tests/test_report_pages.py", "ends by Ctrl-C"),
    "torchrun --nproc-per-node 4 -m inexact_muon_lab run run.toml": (
        "tests/test_lab_machines.py",
        "several processes",
    ),
    "torchrun --nproc-per-node 4 -m inexact_muon_lab run STUDY.toml --pick 8d96df": (
        "tests/test_lab_machines.py",
        "several processes",
    ),
    "inexact-muon bench --peers --device cuda --out gpu.json": ("tests/test_bench.py", "a GPU"),
    "inexact-muon sweep STUDY.toml --engine ray --address HOST:6379": ("tests/test_lab_machines.py", "a cluster"),
    "inexact-muon sweep STUDY.toml --engine slurm --workers 32": ("tests/test_lab_machines.py", "a cluster"),
    (
        "inexact-muon sweep studies/tiny/gpt-iterations.toml --set data.name=text data.path=enwik8 steps=400 seed=0"
        " batch=16 optimizer.lr=0.1 problem.width=96 problem.heads=3 problem.context=64"
    ): (
        "tests/test_lab_data.py",
        "100 MB that are not shipped",
    ),
    "inexact-muon sweep studies/small/cifar-iterations.toml --set data.path=cifar-10-batches-bin steps=400": (
        "tests/test_lab_data.py",
        "170 MB that are not shipped",
    ),
}
"""Commands that are not typed here: where they, or their short form, are run, and why."""


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_blocks_say_what_they_are(page: Path) -> None:
    for block in blocks(page):
        assert block.language in (*LANGUAGES, "indented"), f"{block}: unknown fence {block.language!r}"


def test_tables_have_no_dead_rows() -> None:
    written = {command for _, command in every_command()}
    assert len(written) > 30
    assert set(SHORTER) | set(ELSEWHERE) <= written, (set(SHORTER) | set(ELSEWHERE)) - written
    for command, (place, _) in ELSEWHERE.items():
        assert (ROOT / place).exists(), f"{command}: {place} is not there"


def test_make_targets_exist() -> None:
    named = {target for _, command in every_command() for target in targets(command)}
    assert {"demo", "test"} <= named
    for target in named:
        assert subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_within_sentences_exist(page: Path) -> None:
    for span in re.findall(r"`((?:inexact-muon|make) [^`]+)`", page.read_text()):
        tool, what, *words = span.split()
        if tool == "make":
            assert re.search(rf"^{re.escape(what)}:", (ROOT / "Makefile").read_text(), flags=re.MULTILINE), span
            continue
        known = inspect.signature(COMMANDS[what]).parameters
        names = {"from": "source", "to": "target"}
        for option in (word.removeprefix("--") for word in words if word.startswith("--")):
            assert names.get(option, option) in known, f"{span}: no option --{option}"


@pytest.fixture(autouse=True)
def own_registry() -> Iterator[None]:
    """A page may register an oracle; other tests do not see it."""
    saved = dict(polar.POLARS)
    yield
    polar.POLARS.clear()
    polar.POLARS.update(saved)


@pytest.mark.parametrize("page", [p for p in PAGES if any(b.language == "python" for b in blocks(p))], ids=name)
def test_code_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not HAS_MUON and any("torch.optim.Muon(" in block.text for block in blocks(page)):
        pytest.skip(NO_MUON)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert run_python(page) or any(block.title for block in blocks(page))


WITH_CLIENTS = [block for page in PAGES for block in blocks(page) if libraries(block)]


def test_each_client_has_a_block() -> None:
    assert set().union(*(libraries(block) for block in WITH_CLIENTS)) == set(CLIENTS)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers")
@pytest.mark.parametrize("block", WITH_CLIENTS, ids=str)
def test_code_with_a_client_runs(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for library in libraries(block):
        if find_spec(library) is None:
            pytest.skip(f"{library} is not installed: the set-up of the Makefile brings it")
        if library == "timm":
            import_timm()
    assert run_block(block, {"__name__": "__page__"})


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("page", [p for p in PAGES[2:] if any(commands(b) for b in blocks(p))], ids=name)
def test_the_page_runs_from_top_to_bottom(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(checkout(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    space: dict[str, object] = {"__name__": "__page__"}
    for block in blocks(page):
        if block.title:
            run_block(block, space)
    prepare(page, tmp_path)
    for block in blocks(page):
        run_block(block, space)
        for command in commands(block):
            if command not in ELSEWHERE:
                do(_known_run(command, tmp_path) + SHORTER.get(command, ""), tmp_path)


def do(command: str, folder: Path) -> None:
    """Types a command, or runs it in this process, which is faster; test_wheel types those of the README."""
    tool, *words = shlex.split(command)
    if tool != "inexact-muon" or "my_study.toml" in words or words[0].startswith("-"):
        type_in(command, folder)
        return
    code, out, err = said(*words)
    assert code == 0, f"{command}\n{out}\n{err}"


def prepare(page: Path, folder: Path) -> None:
    """Files that a reader of the page has already."""
    text = page.read_text()
    if "path/to/config.json" in text:
        (folder / "path/to").mkdir(parents=True)
        (folder / "path/to/config.json").write_text(json.dumps(GPT2))
    if "checkpoint.pt" in text and 'save(optimizer.state_dict(), "checkpoint.pt")' not in text:
        layer = torch.nn.Linear(24, 32)
        optimizer = Muon([layer.weight])
        layer(torch.randn(8, 24)).square().mean().backward()
        optimizer.step()
        torch.save(optimizer.state_dict(), folder / "checkpoint.pt")


def _known_run(command: str, folder: Path) -> str:
    """A page names a run by an id of the study at full length; here it is one of the short runs."""
    if command.startswith("inexact-muon show "):
        _, _, place, _ = command.split()
        return f"inexact-muon show {place} {next(iter(store.runs(folder / place))).id}"
    return command
