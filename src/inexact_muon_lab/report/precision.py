"""Section on precision control: loss against the flops of the oracles. The policies themselves were removed."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from inexact_muon_lab.report import sources, study_charts
from inexact_muon_lab.report.figure import Figure, Row, Table
from inexact_muon_lab.report.finding import Finding
from inexact_muon_lab.report.tables import Policy, Precise, named
from inexact_muon_lab.statistics import (
    CONFIRMED,
    FALSE,
    OPEN,
    REFUTED,
    TRUE,
    UNDECIDED,
    Interval,
    PValues,
    all_of,
    any_of,
    interval,
    known_value,
    negate,
    paired,
)

SAVED = 0.15
"""Fraction of the flops that precision control should save."""
SAME = 1.02
"""A fixed oracle matches a budget if it takes at most this many times its flops."""
MARGIN = 0.0025
"""Relative margin above the exact oracle's loss, unless the study declares one."""


def figure(problems: tuple[Precise, ...], section: str) -> Figure:
    """Loss against flops."""
    measured = [(named(p.problem, p.origin), p) for p in problems if any(run.losses for run in p.runs)]
    panels = [
        study_charts.trade_off(f"{name}: loss against flops of the oracles", list(_rows(p))) for name, p in measured
    ]
    lines = [line for name, p in measured for line in _lines(p, name)]
    caption = "A large mark is an oracle or a policy, a small one a seed; the band is the range of the exact oracle."
    head = ("problem", "policy", "kind", "seeds", "loss", "minus exact", "flops of the oracles", "reaches exact")
    return Figure("precision", section, "Precision control: loss and flops", "not in the paper", caption,
                  panels, Table(head, lines), sources.PRECISION)  # fmt: skip


def _rows(p: Precise) -> Iterator[Row]:
    for run in p.runs:
        for seed, loss in run.losses.items():
            yield {"problem": p.problem, "policy": run.policy, "kind": run.kind, "seed": seed, "loss": loss,
                   "oracle_flops": run.spent[seed]}  # fmt: skip


def _lines(p: Precise, name: str) -> Iterator[tuple[str, ...]]:
    exact = _exact(p)
    for run in p.runs:
        loss = interval(run.losses)
        more = _excess(run, exact) if exact else interval([])
        yield (
            name,
            run.policy,
            run.kind,
            str(loss.n),
            f"{loss.mean:.4f}" if loss.n else "-",
            f"{more.mean:+.4f}" if more.n else "-",
            f"{run.flops:.4g}",
            _reaches(run, exact, p.margin).verdict() if exact else "-",
        )


def _exact(p: Precise) -> Policy | None:
    return next((run for run in p.runs if run.kind == "exact" and run.losses), None)


def _excess(run: Policy, other: Policy) -> Interval:
    """Loss minus that of another policy, by seed; the worst is assumed of seeds that only one of them has lost."""
    found = interval(paired(run.losses, other.losses))
    return found.censored(below=bool(other.lost & run.losses.keys()), above=bool(run.lost & other.losses.keys()))


def _reaches(run: Policy, exact: Policy, margin: float | None) -> PValues:
    """Whether the loss, paired by seed, exceeds the exact oracle's by less than the margin (90 % interval).

    A policy with a run that diverged does not.
    """
    if run is exact or None in run.loss:
        return TRUE if run is exact else FALSE
    return _excess(run, exact).no_worse(margin or MARGIN * interval(exact.losses).mean)


def _saving(run: Policy, fixed: Policy) -> Interval:
    """Fraction of the flops saved; a count if it is the same for every seed."""
    seeds = sorted(run.spent.keys() & fixed.spent.keys())
    found = interval({seed: 1.0 - run.spent[seed] / fixed.spent[seed] for seed in seeds})
    return known_value(found.mean, found.n) if found.identical else found


def control_saves(p: Precise) -> Finding:
    """Some policy reaches the exact loss and saves SAVED against every fixed oracle that does; three-valued logic."""
    exact = _exact(p)
    policies = [run for run in p.runs if run.kind in ("adaptive", "budget")]
    name = named(p.problem, p.origin)
    if exact is None or not policies:
        return Finding(name, "", interval([]), OPEN, "needs an exact oracle and an adaptive or budget policy")
    test = {run.policy: _reaches(run, exact, p.margin) for run in p.runs}
    reached = {policy: found.verdict() for policy, found in test.items()}
    fixed = [run for run in p.runs if run.kind in ("exact", "fixed")]
    found = any_of(
        *(
            all_of(test[c.policy], *(any_of(negate(test[f.policy]), _saving(c, f).above(SAVED)) for f in fixed))
            for c in policies
        )
    )
    order = (CONFIRMED, UNDECIDED, REFUTED)
    ours, theirs = (
        min(runs, key=lambda run: (order.index(reached[run.policy]), run.flops)) for runs in (policies, fixed)
    )
    saving = _saving(ours, theirs)
    text = (
        f"{ours.policy} takes {ours.flops / theirs.flops:.0%} of the flops of {theirs.policy}; "
        f"loss {_excess(ours, exact).mean:+.4f} against {exact.policy}"
    )
    note = f"reaches the exact loss: {ours.policy} {reached[ours.policy]}, {theirs.policy} {reached[theirs.policy]}"
    cheaper = sum(reached[f.policy] == UNDECIDED and f.flops < theirs.flops for f in fixed)
    remark = f"{note}; {cheaper} cheaper fixed oracles may" if cheaper else note
    return Finding(name, text, saving, found, remark, zone=(SAVED, inf))


def budget_beats_uniform(p: Precise) -> Finding:
    """Loss of the best fixed oracle with a budget's flops minus the budget's, by seed; mean over budgets."""
    gains: dict[int, list[float]] = {}
    uniform: dict[str, int] = {}
    below = above = False
    for run in (r for r in p.runs if r.kind == "budget"):
        same = [f for f in p.runs if f.kind == "fixed" and f.losses and f.flops <= SAME * run.flops]
        for fixed in sorted(same, key=lambda f: interval(f.losses).mean)[:1]:
            uniform[fixed.policy] = uniform.get(fixed.policy, 0) + 1
            for seed, less in paired(fixed.losses, run.losses).items():
                gains.setdefault(seed, []).append(less)
            below |= bool(run.lost & fixed.losses.keys())
            above |= bool(fixed.lost & run.losses.keys())
    gain = interval({seed: sum(found) / len(found) for seed, found in sorted(gains.items())}).censored(below, above)
    text = f"loss of uniform precision minus that of the budget: {gain.mean:+.4f}" if gain.n else ""
    pairs = "; ".join(f"{count} against {policy}" for policy, count in uniform.items())
    note = f"budgets: {pairs}" if pairs else "no fixed oracle has the flops of a budget"
    note += "; runs diverged, which counts against their policy" if below or above else ""
    return Finding(named(p.problem, p.origin), text, gain, gain.above(), note)
