"""From the runs of a store to the verdicts: what every claim needs of a run is computed once."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from types import FrameType

from inexact_muon_lab.report.claims import judge
from inexact_muon_lab.report.load import load
from report_cases import bowl, grid, ladder, write

RUNS, CALLS, CALLS_PER_RUN = 27, 2500, 60
"""Most calls of the packages' Python functions, comprehensions included; the second bound is for one run more."""


def stores(folder: Path, seeds: int) -> Path:
    """Five numbers of iterations, and a grid of two by three step sizes by two momenta, with as many seeds each."""
    write(folder / "ladder", ladder(seeds=seeds), "ladder")
    surface = bowl({2: (0.05, 0.8), 5: (0.1, 0.8)}, {2: 1.0, 5: 1.0})
    cells = grid(surface, max(1, seeds // 3), rates=(0.025, 0.05, 0.1), momenta=(0.8, 0.9))
    write(folder / "grid", cells, "grid")
    return folder


def calls(folder: Path) -> tuple[int, int]:
    """(runs, calls from their store to the verdicts)"""
    counts: Counter[str] = Counter()

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and "/inexact_muon" in frame.f_code.co_filename:
            counts[frame.f_code.co_qualname] += 1

    sys.setprofile(profile)
    try:
        results = load(folder)
        judged = judge(results)
    finally:
        sys.setprofile(None)
    assert len([item for item in judged if item.finding.statistic]) >= 12
    return len(results.runs), counts.total()


def test_the_verdicts_of_a_store_take_few_calls(tmp_path: Path) -> None:
    runs, few = calls(stores(tmp_path / "few", 3))
    assert runs == RUNS
    assert few <= CALLS
    more_runs, many = calls(stores(tmp_path / "many", 6))
    assert (many - few) / (more_runs - runs) <= CALLS_PER_RUN
