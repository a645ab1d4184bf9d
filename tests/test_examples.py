"""Every example runs from a folder outside the repository, trains, and is skipped where its library is missing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pages import ROOT, type_in

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
TYPED = {"ddp.py": "torchrun --nproc-per-node 2"}
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


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_the_example_trains(path: Path, tmp_path: Path) -> None:
    for library in NEEDS.get(path.name, ()):
        pytest.importorskip(library, reason=f"the extra `clients` brings {library}")
    said = type_in(f"{TYPED.get(path.name, 'python')} {path}", tmp_path)
    first, last = map(float, re.findall(r"^loss ([\d.]+) -> ([\d.]+)$", said, flags=re.MULTILINE)[-1])
    assert last < 0.8 * first, said
