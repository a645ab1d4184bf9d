"""The modelled steps on an H100: the page is what the script writes, and below the others priced alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from pages import load_module
from torch_features import needs_torch_muon

ROOT = Path(__file__).parent.parent
MODELLED = load_module(ROOT / "benchmarks/modelled.py")
TEXT = MODELLED.PAGE.read_text()
OURS, TORCH, DION = MODELLED.OURS, "torch.optim.Muon, fused AdamW", "dion with its kernels"


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("|")[1:-1]]


def table(lines: list[str]) -> dict[str, list[float]]:
    """Optimizer -> launches, ms at published speeds, ms at half of the flops."""
    return {cells(line)[1]: [float(cell) for cell in cells(line)[2:]] for line in lines}


def committed(model: str) -> dict[str, list[float]]:
    return table([line for line in TEXT.splitlines() if line.startswith(f"| {model} |")])


@needs_torch_muon
@pytest.mark.parametrize(
    "model", [pytest.param(m, marks=[pytest.mark.slow] if m.startswith("Llama") else []) for m in MODELLED.MODELS]
)
def test_the_page_is_what_the_script_writes(model: str) -> None:
    found, known = table(MODELLED.rows(model)), committed(model)
    assert found.keys() == known.keys()
    for name in known:
        assert found[name] == pytest.approx(known[name], rel=0.01), name


@pytest.mark.data
@pytest.mark.parametrize("model", MODELLED.MODELS)
def test_below_the_others_priced_alike(model: str) -> None:
    known = committed(model)
    for column in (1, 2):
        assert known[MODELLED.FAST][column] < known[OURS][column] < min(known[TORCH][column], known[DION][column])


@pytest.mark.data
def test_torch_is_priced_as_it_was() -> None:
    """By the model that the figures for dion come from."""
    assert committed("GPT-2 124M")[TORCH][1] == pytest.approx(8.8, abs=0.05)
    assert committed("Llama-3-8B")[TORCH][1] == pytest.approx(1207, abs=0.5)


@pytest.mark.slow
def test_with_better_accuracy() -> None:
    rows = MODELLED.accuracy()
    kept = {cells(line)[0]: cells(line)[1:] for line in TEXT.splitlines() if line.startswith("| ") and ", " in line}
    for row in rows:  # rounding in half precision differs between CPUs in the last digit
        name, *found = cells(row)
        for new, old in zip(found, kept[name], strict=True):
            assert [float(x) for x in new.split(", ") if x != "-"] == pytest.approx(
                [float(x) for x in old.split(", ") if x != "-"], abs=0.002
            )
    values = {cells(row)[0]: [c.split(", ") for c in cells(row)[1:] if c != "-"] for row in rows}
    worst = {name: [max(abs(float(c[i]) - i) for c in some) for i in (0, 1)] for name, some in values.items()}
    for other in ("torch.optim.Muon", "dion"):
        assert worst[OURS][0] < worst[other][0]
        assert worst[OURS][1] < worst[other][1]
