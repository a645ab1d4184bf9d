"""Every oracle of a setting against the reference: best step size, loss at it and at one step size, verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, log
from statistics import fmean

from grids import FEWEST, Grid, Setting, lowest

from inexact_muon_lab.statistics import CONFIRMED, REFUTED, Interval, interval, paired

WORDS = BETTER, ENOUGH, UNCLEAR, WORSE = "better", "enough", "open", "worse"
"""Below the reference for sure; above it by less than the margin; none of the three; above it by more."""


@dataclass(frozen=True)
class Span:
    """A mean over seeds and its 95 % t interval; None where the spread is not known."""

    mean: float
    low: float | None
    high: float | None

    def __str__(self) -> str:
        return f"{self.mean:+.4f}" + ("" if self.low is None else f" ({self.low:+.4f} to {self.high:+.4f})")


@dataclass(frozen=True)
class Row:
    """One oracle in one setting.

    Attributes:
        lr: the step size that all seeds choose together; None if there are too few to choose from.
        edge: the lowest mean loss is at an end of the grid.
        shift: best step size over the reference's, by seed.
        own: loss minus the reference's, each at its own best step size.
        matched: the same at one step size.
        flops: of the oracle's calls, over those of five Polar Express steps; None if no study has such runs.
    """

    oracle: str
    seeds: int
    lr: float | None
    edge: bool
    shift: Span | None
    loss: float
    own: Span | None
    matched: Span | None
    verdict: str
    flops: float | None


def span(found: Interval) -> Span:
    """What is kept of an interval, in five digits: that much is the same on every machine."""
    known = found.n >= FEWEST
    low, high = (round(x, 5) if known else None for x in (found.low, found.high))
    return Span(round(found.mean, 5), low, high)


def rows(setting: Setting, grids: Mapping[str, Grid]) -> list[Row]:
    """The oracles of a setting, the reference first, then by their loss."""
    grid = grids[setting.study]
    if setting.tuned_by:
        found = [_tried(setting, grid, oracle) for oracle in grid.losses]
    else:
        found = [_tuned(setting, grid, oracle) for oracle in grid.judged]
        found += [_partly(setting, grid, oracle) for oracle in grid.losses if oracle not in grid.judged]
    order = [row for row in found if row]
    return sorted(order, key=lambda row: (row.oracle != setting.reference, row.own is None, row.loss))


def _matched(setting: Setting, grid: Grid, oracle: str) -> Interval | None:
    """Loss minus the reference's at the common step size; None without a seed that has both."""
    if setting.matched is None or setting.reference not in grid.losses:
        return None
    found = interval(paired(*(grid.matched(name, setting.matched) for name in (oracle, setting.reference))))
    return found if found.n else None


def _partly(setting: Setting, grid: Grid, oracle: str) -> Row | None:
    """An oracle of which too few seeds have the whole grid: at the common step size alone."""
    matched = _matched(setting, grid, oracle)
    if matched is None:
        return None
    losses = grid.matched(oracle, setting.matched or 0.0)
    best = lowest(grid.means(oracle)) if oracle in grid.tunable else None
    itself = oracle == setting.reference
    return Row(
        oracle=oracle,
        seeds=matched.n,
        lr=round(best.lr, 5) if best else None,
        edge=bool(best and best.edge),
        shift=None,
        loss=round(fmean(losses.values()), 5),
        own=None,
        matched=None if itself else span(matched),
        verdict="reference" if itself else "",
        flops=_flops(grid, oracle),
    )


def _flops(grid: Grid, oracle: str) -> float | None:
    return round(grid.flops[oracle] / grid.five, 2) if grid.five else None


def _tuned(setting: Setting, grid: Grid, oracle: str) -> Row:
    best = grid.best(oracle, grid.seeds(oracle))
    mine, theirs = ({s: log(o.lr) for s, o in grid.by_seed(name).items()} for name in (oracle, setting.reference))
    shift = interval(paired(mine, theirs))
    matched = _matched(setting, grid, oracle)
    own, theirs_own = grid.own(oracle), grid.own(setting.reference)
    end = grid.best(setting.reference, grid.seeds(setting.reference)).edge
    return _row(setting, grid, oracle, best.lr, best.edge, shift, matched, own, theirs_own, end)


def _tried(setting: Setting, grid: Grid, oracle: str) -> Row | None:
    """At the step size that another study gave, the only one of this."""
    rates = [next(iter(grid.losses.get(name, {})), None) for name in (oracle, setting.reference)]
    losses = [grid.matched(name, lr or 0.0) for name, lr in zip((oracle, setting.reference), rates, strict=True)]
    if len(paired(*losses)) < FEWEST or rates[0] is None:
        return None
    return _row(setting, grid, oracle, rates[0], False, None, None, *losses)


def _row(
    setting: Setting,
    grid: Grid,
    oracle: str,
    lr: float,
    edge: bool,
    shift: Interval | None,
    matched: Interval | None,
    losses: Mapping[int, float],
    reference: Mapping[int, float],
    reference_edge: bool = False,
) -> Row:
    """A row; beyond the end of a grid at which its best lies the loss may be lower, so that "worse" is open."""
    itself = oracle == setting.reference
    own = interval(paired(dict(losses), dict(reference)))
    margin = setting.margin * fmean(reference.values())
    ratios = None if shift is None else span(Interval(exp(shift.mean), exp(shift.low), exp(shift.high), shift.n))
    return Row(
        oracle=oracle,
        seeds=len(losses),
        lr=round(lr, 5),
        edge=edge,
        shift=None if itself else ratios,
        loss=round(fmean(losses.values()), 5),
        own=None if itself else span(own),
        matched=None if itself or matched is None else span(matched),
        verdict="reference" if itself else verdict(own.censored(below=edge, above=reference_edge), margin),
        flops=_flops(grid, oracle),
    )


def verdict(worse: Interval, margin: float) -> str:
    """What a difference to the reference says, by the tests that declared.toml names."""
    if worse.below(0.0).verdict() == CONFIRMED:
        return BETTER
    return {CONFIRMED: ENOUGH, REFUTED: WORSE}.get(worse.no_worse(margin).verdict(), UNCLEAR)
