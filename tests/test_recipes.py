"""The recipes of CONTRIBUTING, followed to the letter in a copy of the repository."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

from pages import ROOT, Block, blocks, commands, run_block, tools, type_in
from tiers import at_length

PAGE = ROOT / "CONTRIBUTING.md"
RECIPES = ("Add a polar method", "Add an LMO", "Add a bound", "Add a problem")
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "build", "runs", "dist", "__pycache__", ".*_cache", ".hypothesis")


def recipe(title: str) -> list[Block]:
    """The blocks between a heading and the next."""
    lines = PAGE.read_text().splitlines()
    first = lines.index(f"## {title}")
    last = next((k for k in range(first + 1, len(lines)) if lines[k].startswith("## ")), len(lines))
    return [block for block in blocks(PAGE) if first < block.line <= last]


def apply(diff: str, folder: Path) -> None:
    """Lines with a minus or a blank must be in the file once, in this order; `...` stands for the rest of a line."""
    head, body = diff.split("\n", 1)
    path = folder / head.removeprefix("--- ")
    text = path.read_text()
    for hunk in body.split("@@\n"):
        rows = [(line[:1], line[1:].removesuffix("...")) for line in hunk.splitlines()]
        old, new = ("\n".join(row for sign, row in rows if sign in signs) for signs in (" -", " +"))
        whole = not any(line.endswith("...") for line in hunk.splitlines())
        found = len(re.findall(re.escape(old) + ("$" if whole else ""), text, flags=re.MULTILINE))
        assert found == 1, f"{path}: found {found} times:\n{old}"
        text = text.replace(old, new, 1)
    path.write_text(text)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The repository with a .venv that is this test's, so that `make` has nothing to set up."""
    folder = tmp_path / "copy"
    shutil.copytree(ROOT, folder, ignore=LEFT_OUT)
    tools(folder / ".venv/bin", folder / "src")
    (folder / ".venv/.ready").touch()
    return folder


def follow(title: str, folder: Path) -> None:
    """Files and changes first to last."""
    for block in recipe(title):
        if block.language == "diff":
            apply(block.text, folder)
        run_block(block, {}, folder)


def test_there_are_four() -> None:
    for title in RECIPES:
        found = [block.language for block in recipe(title)]
        assert {"diff", "sh"} <= set(found)
    assert re.findall(r"^## (Add .*)$", PAGE.read_text(), flags=re.MULTILINE) == list(RECIPES)


def test_the_changes_fit(copy: Path) -> None:
    for title in RECIPES:
        follow(title, copy)
    diffs = [block.text for title in RECIPES for block in recipe(title) if block.language == "diff"]
    for path in {diff.split("\n", 1)[0].removeprefix("--- ") for diff in diffs}:
        assert (copy / path).read_text() != (ROOT / path).read_text(), path
    added = "polar.parse('settled:7').flops(2, 3), lmo.parse('col-sum').rho((2, 3))"
    assert "1.7" in type_in(
        f'{sys.executable} -c "from inexact_muon import lmo, polar; print({added})"', copy, copy / "src"
    )


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("title", at_length(["Add a bound"], *(title for title in RECIPES if title != "Add a bound")))
def test_the_recipe_works(title: str, copy: Path) -> None:
    follow(title, copy)
    for block in recipe(title):
        for command in commands(block):
            said = type_in(command, copy, copy / "src")
            if "pytest" in command:
                assert re.search(r"\d+ passed", said) or "100%" in said, said


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_all_of_them_together_are_in_style(copy: Path) -> None:
    if (ROOT / ".mypy_cache").exists():  # of `make types`: what has not changed is not read again
        shutil.copytree(ROOT / ".mypy_cache", copy / ".mypy_cache")
    for title in RECIPES:
        follow(title, copy)
    type_in(".venv/bin/ruff check --fix src && make lint types", copy, copy / "src")


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_step_that_is_forgotten_is_noticed(copy: Path) -> None:
    for block in recipe("Add an LMO"):
        if block.language == "diff" and "tests/helpers/cases.py" not in block.text:
            apply(block.text, copy)
        run_block(block, {}, copy)
    with pytest.raises(AssertionError, match="test_every_ball_is_in_the_table"):
        type_in(f"{sys.executable} -m pytest tests/test_public_api.py", copy, copy / "src")
