"""The benchmark measures what it says: known times, memory and slopes; its contenders are what they are called."""

import io
import json
import math
import time
from pathlib import Path

import pytest
import torch
from rich.console import Console

from inexact_muon import polar
from inexact_muon.bench import growth, oracles, page, steps
from inexact_muon.bench.timing import interleaved, peak_memory
from inexact_muon.schedules.published import JORDAN
from inexact_muon.schedules.spectra import SPECTRA

ROOT = Path(__file__).parent.parent
COMMITTED = json.loads((ROOT / "benchmarks/results/bench.json").read_text())


def test_ratios_are_taken_within_rounds() -> None:
    ticks: list[int] = []
    works = {"short": lambda: time.sleep(0.002), "long": lambda: time.sleep(0.006)}
    times = interleaved(works, 5, lambda: ticks.append(1))
    assert len(ticks) == 7
    assert [len(taken) for taken in times.times.values()] == [5, 5]
    ratio = times.over("long", "short")
    assert 1.0 < ratio.low <= ratio.middle <= ratio.high
    assert times.over("short", "short").middle == 1.0


def test_memory_is_what_was_held_at_once() -> None:
    def work() -> None:
        for _ in range(5):
            x = torch.ones(2**18)  # 1 MB, one at a time
            del x
        torch.ones(2**18), torch.ones(2**18)

    assert 2 * 2**20 <= peak_memory(work) < 3 * 2**20


def test_the_step_stays_within_its_memory() -> None:
    """Six copies of the largest matrix when the limit is nothing."""
    for shapes in (((96, 96),) * 20, ((64, 256),) * 8, ((400, 400),) * 2):
        optimizer = steps.Muon.for_model(steps.Bag(shapes), 1e-3, rules=steps.MATRICES, memory_limit=0)
        assert peak_memory(optimizer.step) <= 6 * 4 * math.prod(shapes[0]) + 2**16


def test_slopes() -> None:
    xs = [2.0, 4.0, 9.0]
    assert growth.fit(xs, [5.0 * x**2.5 for x in xs]) == pytest.approx(2.5)


@pytest.mark.parametrize("spectrum", ["log-uniform", "power-law"])
@pytest.mark.parametrize("shape", [(20, 20), (20, 50), (50, 20)])
def test_matrices_have_their_spectrum(spectrum: str, shape: tuple[int, int]) -> None:
    m = oracles.with_spectrum(shape, spectrum, 0)
    assert tuple(m.shape) == shape
    values = torch.from_numpy(SPECTRA[spectrum](20)).float().sort(descending=True).values
    torch.testing.assert_close(torch.linalg.svdvals(m), values, rtol=1e-3, atol=1e-5)


def test_the_plain_quintics_are_jordans() -> None:
    ms = [torch.randn(s, generator=torch.Generator().manual_seed(1)) for s in ((12, 12), (12, 30), (30, 12))]
    for m, x in zip(ms, oracles.quintics(ms, [JORDAN] * 5), strict=True):
        torch.testing.assert_close(x, polar.Jordan(5, form="direct")(m), rtol=0, atol=1e-4)
    cheap = oracles.contenders(((12, 12), (12, 30), (30, 12)))[oracles.CHEAPEST](ms)
    for m, x in zip(ms, cheap, strict=True):
        torch.testing.assert_close(x, polar.cheapest(*m.shape)(m), rtol=0, atol=1e-4)


def test_every_optimizer_steps() -> None:
    for optimizer in steps.optimizers(((8, 8), (8, 16)), peers=True).values():
        before = [p.detach().clone() for g in optimizer.param_groups for p in g["params"]]
        steps.stepping(optimizer)()
        after = [p.detach() for g in optimizer.param_groups for p in g["params"]]
        assert not any(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_the_page_shows_the_committed_numbers(tmp_path: Path) -> None:
    page.show(COMMITTED, Console(file=io.StringIO(), width=200))
    written = page.save(COMMITTED, tmp_path / "bench.json")
    assert {path.suffix for path in written} == {".json", ".md", ".svg"}
    assert (tmp_path / "bench.md").read_text() == (ROOT / "benchmarks/results/bench.md").read_text()


@pytest.mark.data
def test_telemetry_costs_what_the_page_says() -> None:
    """Under a tenth every step, under a fiftieth every tenth step, beyond what the spread of the machine hides."""
    rows = json.loads((ROOT / "benchmarks/results/telemetry.json").read_text())
    allowed = {"every 1": 1.10, "every 10": 1.02}
    assert {r["set"] for r in rows} == set(steps.SETS)
    assert all(r["time"] < allowed[r["sampling"]] for r in rows)


@pytest.mark.data
def test_the_committed_oracles_are_accurate_enough() -> None:
    """What `cheapest` promises by default, measured on the layer of the benchmark; no worse than five quintics."""
    rows = {(r["oracle"], r["spectrum"]): r for r in COMMITTED["oracles"]}
    for spectrum in ("gaussian", "log-uniform", "power-law"):
        cheap, five = rows[oracles.CHEAPEST, spectrum], rows[oracles.FIVE, spectrum]
        assert cheap["gap"] <= 0.03
        assert cheap["overshoot"] <= 1.07
        assert cheap["gap"] <= five["gap"]
        assert cheap["overshoot"] <= five["overshoot"]
    assert all(r["peak"] <= r["allowed"] for r in COMMITTED["memory"])
