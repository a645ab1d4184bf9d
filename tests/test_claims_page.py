"""The page of claims by size follows from the packed evidence, and leaves nothing open without its cost."""

from __future__ import annotations

from typing import Any

import pytest

from inexact_muon_lab.report.claims import CLAIMS, Judged
from inexact_muon_lab.report.finding import Finding
from inexact_muon_lab.statistics import LEVEL, interval
from pages import ROOT, load_module

PAGE = ROOT / "docs/claims.md"
STRICT = LEVEL / 12
table = load_module(ROOT / "studies/reference/table.py")


@pytest.fixture(scope="module")
def parts() -> dict[str, str]:
    return dict(table.made())


@pytest.mark.data
def test_the_page_is_that_of_the_packed_evidence(parts: dict[str, str]) -> None:
    page = PAGE.read_text()
    assert table.written(page, parts) == page


@pytest.mark.data
def test_every_claim_of_the_paper_has_a_row_and_no_open_one_lacks_its_cost(parts: dict[str, str]) -> None:
    rows = "".join(parts.values()).splitlines()
    for claim in CLAIMS:
        if claim.id != "theory":  # counted by the demo, in docs/figures/theory.md
            assert any(row.startswith(f"| {claim.sentence} |") for row in rows), claim.id
    for name in ("language models", "images"):
        for cell in (cell for row in parts[name].splitlines()[2:] for cell in row.split(" | ")):
            assert "open" not in cell or "would tell" in cell or "would not tell" in cell


def judged(values: list[float], zone: tuple[float, float] = (0.0, float("inf")), claim: int = 0) -> Any:
    found = interval(values)
    return Judged(CLAIMS[claim], Finding("x", "x", found, found.above(), zone=zone), found.above())


def test_studies_of_one_claim_divide_its_share() -> None:
    found = table.levels([judged([0.0, 1.0]), judged([0.0, 1.0]), judged([0.0, 1.0], claim=1), judged([1.0], claim=2)])
    assert found == {CLAIMS[0].id: LEVEL / 4, CLAIMS[1].id: LEVEL / 2}


@pytest.mark.parametrize(("noise", "most"), [(0.1, 5), (1.0, 30), (3.0, 200)])
def test_more_noise_takes_more_seeds(noise: float, most: int) -> None:
    wanted = table.seeds_to_decide(judged([1.0 - noise, 1.0, 1.0 + noise]), None, STRICT)
    assert 2 <= wanted <= most
    assert wanted >= table.seeds_to_decide(judged([1.0 - noise / 2, 1.0, 1.0 + noise / 2]), None, STRICT)


def test_an_effect_at_the_edge_is_decided_by_a_margin_alone() -> None:
    nothing = judged([-1.0, 0.0, 1.0])
    assert table.seeds_to_decide(nothing, None, STRICT) == 0
    assert 3 < table.seeds_to_decide(nothing, 0.5, STRICT) < 100
