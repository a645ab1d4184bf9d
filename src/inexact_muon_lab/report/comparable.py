"""The runs of a study that compare: of one environment, each sample once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from inexact_muon_lab.errors import warn
from inexact_muon_lab.report.records import Arm, RunRecord


def runs(study: str, every: Sequence[RunRecord]) -> tuple[RunRecord, ...]:
    """The runs without those that do not compare, about which it warns."""
    for left_out in (_alike, _distinct):
        out = left_out(study, every)
        every = [run for run in every if run.id not in out]
    return tuple(every)


def _alike(study: str, every: Sequence[RunRecord]) -> set[str]:
    """Runs whose environment (data, versions, CPU) differs from the others of their setting and seed.

    Of each setting and seed the largest set with one environment is kept. Runs of earlier versions do not say which
    code a custom problem had.
    """
    known = [run.outcome.environment for run in every if run.outcome is not None]
    unsaid = {"code"} if any("code" not in environment for environment in known) else set()
    groups: dict[tuple[str, int], dict[tuple[tuple[str, str], ...], list[RunRecord]]] = {}
    for run in every:
        if run.outcome is not None:
            key = tuple(sorted((k, v) for k, v in run.outcome.environment.items() if k not in unsaid))
            groups.setdefault((run.setting, run.seed), {}).setdefault(key, []).append(run)
    out: set[str] = set()
    for (_, seed), by_environment in groups.items():
        (common, _), *others = sorted(by_environment.items(), key=lambda item: -len(item[1]))
        for other, runs in others:
            first, second = dict(common), dict(other)
            names = [n for n in sorted(first.keys() | second.keys()) if first.get(n) != second.get(n)]
            what = ", ".join(f"{n} {_short(second.get(n))} instead of {_short(first.get(n))}" for n in names)
            warn(f"{study}: {len(runs)} of the runs of seed {seed} do not compare and are left out: {what}")
            out |= {run.id for run in runs}
    return out


def _distinct(study: str, every: Sequence[RunRecord]) -> set[str]:
    """What would count one sample twice, or two samples as one.

    Seeds that ended bit for bit as another one in all runs they share are that seed again. Runs of one arm and seed
    that ended in two ways, such as an oracle written in two ways, do not say which of them counts.
    """
    arms: dict[str, dict[int, dict[Arm, list[RunRecord]]]] = {}
    for run in every:
        if run.state == "finished":
            arms.setdefault(run.setting, {}).setdefault(run.seed, {}).setdefault(run.arm, []).append(run)
    out: set[str] = set()
    for by_seed in arms.values():
        several = [runs for by_arm in by_seed.values() for runs in by_arm.values() if len(runs) > 1]
        for runs in (runs for runs in several if not all(_same(runs[0], run) for run in runs)):
            ids = ", ".join(run.id for run in runs)
            warn(f"{study}: runs {ids} are one arm and seed {runs[0].seed} with two results; they are left out")
            out |= {run.id for run in runs}
        seeds = sorted(by_seed)
        for seed in seeds:
            first = next((s for s in seeds if s < seed and _copies(by_seed[s], by_seed[seed])), None)
            if first is not None:
                warn(f"{study}: seed {seed} ended bit for bit as seed {first}: one sample; it is left out")
                out |= {run.id for runs in by_seed[seed].values() for run in runs}
    return out


def _copies(first: Mapping[Arm, list[RunRecord]], second: Mapping[Arm, list[RunRecord]]) -> bool:
    shared = first.keys() & second.keys()
    return bool(shared) and all(_same(first[arm][0], second[arm][0]) for arm in shared)


def _same(one: RunRecord, two: RunRecord) -> bool:
    """Whether all metrics that both have are equal."""
    return all(one.result[name] == two.result[name] for name in one.result.keys() & two.result.keys())


def _short(value: str | None) -> str:
    return "none" if value is None else value[:12]
