"""The built wheel in an empty environment outside the repository: nothing but the declared dependencies is there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import pytest

from inexact_muon_lab.cli import COMMANDS
from pages import ROOT, blocks, commands
from test_metadata import COMMAND, CORE
from test_pages_run import ELSEWHERE, SHORTER

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
README = ROOT / "README.md"
EXTRA = "inexact-muon report|inexact-muon decide|runs/mine"
"""Needs the extra `lab`, which is not installed here, or what it makes."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with `env`, which sees what the core and the command need of this environment, and the wheel."""
    folder = tmp_path_factory.mktemp("outside")
    words = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*words, "--wheel-dir", str(folder), str(ROOT)], check=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder / "env")], check=True)
    type_there(folder, "pip uninstall --quiet --yes setuptools")  # Python 3.11 brings one too old for torch
    (site,) = (folder / "env/lib").glob("python*/site-packages")
    (site / "core.pth").write_text(f"{shown(closure(CORE | COMMAND), folder / 'core')}\n")
    (wheel,) = folder.glob("inexact_muon-*.whl")
    type_there(folder, f"pip install --quiet --no-index --disable-pip-version-check '{wheel.name}[cli]'")
    yield folder
    shutil.rmtree(folder)


def closure(names: set[str]) -> set[str]:
    """The distributions, and those that they require without extras."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            required = (r for r in distribution(name).requires or () if "extra ==" not in r)
            waiting += [m[0] for r in required if (m := re.match(r"[\w.-]+", r)) and installed(m[0])]
    return found


def installed(name: str) -> bool:
    try:
        return bool(distribution(name).files)
    except ModuleNotFoundError:  # for another system or Python
        return False


def shown(names: set[str], folder: Path) -> Path:
    """A folder of links to the files of these distributions."""
    folder.mkdir()
    for name in names:
        found = distribution(name)
        tops = {file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")}
        for top in tops:
            if not (folder / top).exists():
                (folder / top).symlink_to(Path(str(found.locate_file(top))))
    return folder


def type_there(folder: Path, command: str, **more: str) -> str:
    """A command in the folder with the environment's own tools and nothing of this one."""
    path = os.pathsep.join((str(folder / "env/bin"), "/usr/bin", "/bin"))
    shell = {"PATH": path, "HOME": str(folder), "OMP_NUM_THREADS": "1", **more}
    done = subprocess.run(["sh", "-ec", command], cwd=folder, env=shell, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_dependencies_are_declared(place: Path) -> None:
    assert "No broken requirements" in type_there(place, "pip check")
    names = type_there(place, "python -c 'import inexact_muon; print(inexact_muon.__file__)'")
    assert str(place / "env") in names
    modules = ["inexact_muon.optim", "inexact_muon.tune", "inexact_muon.testing", "inexact_muon.theory"]
    modules += ["inexact_muon_lab.sweep.commands", "inexact_muon_lab.plan.page"]
    type_there(place, f"python -c 'import {', '.join(modules)}'")


def test_the_readme_runs(place: Path) -> None:
    """Code and commands in their order; what needs a clone, or the extra, is left out."""
    code = [b for b in blocks(README) if b.language == "python" and not b.title]
    assert len(code) >= 2
    typed = [c for b in blocks(README) for c in commands(b) if c not in ELSEWHERE]
    typed = [c for c in typed if not re.search(r"studies/|runs/gpt|" + EXTRA, c)]
    assert len(typed) >= 6
    for block in blocks(README):
        if block.title:
            (place / block.title).write_text(block.text)
    (place / "blocks.py").write_text("\n".join(block.text for block in code))  # one goes on where another ends
    assert type_there(place, "python blocks.py")
    for command in typed:
        assert type_there(place, command + SHORTER.get(command, "")), command


def test_the_extra_is_named_where_it_is_missing(place: Path) -> None:
    with pytest.raises(AssertionError, match=r"pip install 'inexact-muon\[lab\]'"):
        type_there(place, "inexact-muon report .")


def test_commands_that_need_no_torch_do_not_import_it(place: Path) -> None:
    trap = place / "trap/torch"
    trap.mkdir(parents=True)
    (trap / "__init__.py").write_text("raise ImportError('torch was imported')\n")
    free = [f"{name} --help" for name in COMMANDS] + ["theory list", "theory stochastic-optimal"]
    for words in free:
        assert type_there(place, f"inexact-muon {words}", PYTHONPATH=str(place / "trap")), words
    with pytest.raises(AssertionError, match="torch was imported"):
        type_there(place, "inexact-muon delta polar-express:5", PYTHONPATH=str(place / "trap"))


def test_help_answers_at_once(place: Path) -> None:
    """Processor time, the best of five: the clock on the wall is others' business too."""
    code = textwrap.dedent(
        """
        import os, subprocess
        def once():
            before = os.times()
            subprocess.run(["inexact-muon", "--help"], stdout=subprocess.DEVNULL, check=True)
            after = os.times()
            return after.children_user + after.children_system - before.children_user - before.children_system
        print(min(once() for _ in range(5)))
        """
    )
    (place / "clock.py").write_text(code)
    assert float(type_there(place, "python clock.py")) < 0.3


def test_an_oracle_of_an_installed_package_is_found_by_name(place: Path) -> None:
    for block in blocks(ROOT / "docs/extend.md"):
        if block.title == "halley.py":
            (place / "plugin").mkdir()
            (place / "plugin/halley.py").write_text(block.text)
        if block.language == "toml":
            entry = block.text.replace('[project.entry-points."', "[").replace('"]', "]").replace('"', "")
    about = place / "plugin/halley_oracle-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: halley-oracle\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(entry)
    said = type_there(place, "inexact-muon delta halley:6 --shape 64x64", PYTHONPATH=str(place / "plugin"))
    assert "halley(steps=6)" in said
    with pytest.raises(AssertionError, match="unknown name 'halley'"):
        type_there(place, "inexact-muon delta halley:6 --shape 64x64")
