"""Every example runs from a folder outside the repository, trains, and is skipped where its library is missing."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import warnings
from pathlib import Path

import pytest

from pages import ROOT, type_in

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
TYPED = {"ddp.py": "torchrun --nproc-per-node 2", "sweep_and_report.py": "python", "quick_swap.py": "python"}
"""Those that start processes, and one as everybody does; the others run in this process."""
NEEDS = {
    "with_trainer.py": ("transformers", "accelerate"),
    "with_lightning.py": ("lightning",),
    "with_accelerate.py": ("accelerate",),
}
"""Libraries of the extra `clients`."""


def test_the_list_is_complete() -> None:
    page = (ROOT / "examples/README.md").read_text()
    assert len(EXAMPLES) >= 9
    assert set(NEEDS) == {p.name for p in EXAMPLES if p.name.startswith("with_")}
    assert sorted(re.findall(r"^\| `(\w+\.py)`", page, flags=re.MULTILINE)) == [p.name for p in EXAMPLES]
    for path in EXAMPLES:
        assert path.read_text().count("\n") <= 100, f"{path.name} is not short"


def run_here(path: Path, folder: Path) -> str:
    """The output of a script in this process, which saves the seconds of imports."""
    out = io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(out), warnings.catch_warnings():
        warnings.simplefilter("default")  # a user's process shows what these libraries warn of
        runpy.run_path(str(path), run_name="__main__")
    return out.getvalue()


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_the_example_trains(path: Path, tmp_path: Path) -> None:
    for library in NEEDS.get(path.name, ()):
        pytest.importorskip(library, reason=f"the extra `clients` brings {library}")
    said = type_in(f"{TYPED[path.name]} {path}", tmp_path) if path.name in TYPED else run_here(path, tmp_path)
    first, last = map(float, re.findall(r"^loss ([\d.]+) -> ([\d.]+)$", said, flags=re.MULTILINE)[-1])
    assert last < 0.8 * first, said
