"""Which power of the singular values trained best, from packed runs of several powers."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec

from inexact_muon_lab.report.load import RunRecord, load
from inexact_muon_lab.statistics import interval, paired

FAMILIES = {
    "zolotarev(poles=3)": re.compile(r"zolotarev\(poles=3, lower=0\.002, power=(-?[\d.]+)\)"),
    "shaped(factors=())": re.compile(r"shaped\(factors=\(power\(p=(-?[\d.]+)\),\)\)"),
}
"""Power 0, nearly or exactly, and the same oracle with other powers."""
TUNED = ("lr", "decay", "weight_decay", "adamw_lr")
"""Rates that may differ between the runs of a power; the best of them is taken."""

Losses = Mapping[float, Mapping[tuple[Any, ...], Mapping[int, float]]]
"""Power -> rates -> seed -> validation loss at the end."""


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table [[runs]] of declared.toml.

    Attributes:
        model: that of `measured.json`.
        batch: likewise.
        study: its name.
        packs: files whose runs of this batch are taken, relative to this folder; empty as long as there are none.
        says: in which it differs from the runs that were measured.
    """

    model: str
    batch: int
    study: str
    packs: tuple[str, ...] = ()
    says: str = ""


@dataclass(frozen=True)
class Best:
    """The powers of a study, each at rates that other seeds choose.

    Attributes:
        losses: power -> mean loss.
        best: the power with the lowest.
        alike: powers whose loss, seed by seed, is not told from the best one's (95 %, not corrected for their number).
        at_end: the best is the smallest or the largest power that was tried.
        rate_at_end: powers whose best lr is the smallest or the largest that was tried.
    """

    losses: dict[str, float]
    best: float
    alike: list[float]
    at_end: bool
    rate_at_end: list[float]
    seeds: int


def sources(path: Path) -> list[Source]:
    """The tables of declared.toml."""
    return msgspec.convert(tomllib.loads(path.read_text()), dict[str, list[Source]])["runs"]


def power(polar: str, family: str) -> float | None:
    """Of an oracle; None if it is not one of the family."""
    found = FAMILIES[family].fullmatch(polar)
    return 0.0 if polar == family else float(found[1]) if found else None


def losses(runs: Sequence[RunRecord], batch: int) -> Losses:
    """Of the finished runs of this batch, of the family with the most powers."""
    tables: dict[str, dict[float, dict[tuple[Any, ...], dict[int, float]]]] = {family: {} for family in FAMILIES}
    for family, table in tables.items():
        for run in runs:
            options, loss = run.spec.optimizer, run.value("loss")
            p = power(options.polar, family)
            if p is not None and loss is not None and run.spec.batch == batch:
                rates = tuple(getattr(options, name, None) for name in TUNED)
                table.setdefault(p, {}).setdefault(rates, {})[run.seed] = loss
    return max(tables.values(), key=len)


def own(by_rates: Mapping[tuple[Any, ...], Mapping[int, float]]) -> dict[int, float]:
    """Each seed's loss at the rates with the lowest mean loss of the other seeds."""
    seeds = set.intersection(*(set(by) for by in by_rates.values()))
    return {
        seed: min(by_rates.values(), key=lambda by, seed=seed: fmean(by[s] for s in seeds if s != seed))[seed]
        for seed in sorted(seeds)
        if len(seeds) > 1
    }


def best(table: Losses) -> Best:
    """Of at least two powers with at least two seeds."""
    each = {p: own(by_rates) for p, by_rates in sorted(table.items())}
    common = set.intersection(*(set(by) for by in each.values()))
    if len(each) < 2 or len(common) < 2:
        raise ValueError("the best power needs at least two powers with at least two seeds in common")
    means = {p: fmean(by[s] for s in common) for p, by in each.items()}
    lowest = min(means, key=lambda p: means[p])
    alike = [p for p in each if p == lowest or interval(paired(each[p], each[lowest])).low <= 0.0]
    at_end = []
    for p, by_rates in table.items():
        chosen = min(by_rates, key=lambda rates, by_rates=by_rates: fmean(by_rates[rates].values()))
        if chosen[0] in (min(rates[0] for rates in by_rates), max(rates[0] for rates in by_rates)):
            at_end.append(p)
    shown = {f"{p:g}": round(mean, 4) for p, mean in means.items()}
    return Best(shown, lowest, alike, lowest in (min(means), max(means)), sorted(at_end), len(common))


def of(source: Source, folder: Path) -> Best | None:
    """What the packs of a source say; None as long as there are none."""
    if not source.packs:
        return None
    runs = [r for pack in source.packs for study in load(folder / pack).studies for r in study.runs]
    return best(losses(runs, source.batch))
