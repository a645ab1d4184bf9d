"""Claims about the number of iterations at one step size and momentum."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from math import exp, log

from inexact_muon_lab.report.finding import Finding, joined, unknown
from inexact_muon_lab.report.ladders import Series, iterations
from inexact_muon_lab.statistics import LEVEL, OPEN, Interval, PValues, all_of, difference, paired, quantile

SATURATED, FIRST = 0.9, 0.5
"""Fractions of the whole gain that five and three iterations must achieve."""
SLIGHTLY = 1.10
"""Largest ratio of step times that counts as "grows slightly"; the paper's table has 1.035."""
IDLE = 0.1
"""Largest share of a machine's CPU time that other processes may use while runs are timed."""
CONSTANT = 2.0
"""Largest p90/p10 of the LMO error after the first tenth; the paper's numbers drift by 26.9/23.6 and 3.5/1.7."""
ZERO = 1e-9
"""Smaller LMO errors, such as those of an exact oracle, are rounding: their ratios are taken at this value."""


def lower_loss(ladder: Series) -> Finding:
    """Loss of the fewest iterations minus that of the most, paired by seed; no significant increase between neighbours.

    Refuted by the whole gain or by any step between neighbours: the smallest p times their number.
    """
    of, name = ("train_loss", "training loss") if ladder.images else ("loss", "validation loss")
    counts = ladder.counts
    gain = ladder.gain(counts[0], counts[-1], of)
    steps = {f"{a} to {b}": ladder.gain(a, b, of).above() for a, b in pairwise(counts)}
    refute = all_of(gain.above(), *steps.values()).refute
    worse = [step for step, p in steps.items() if min(1.0, (1 + len(steps)) * p.refute) <= LEVEL]
    said = f"surely worse from {', '.join(worse)} iterations" if worse else ""
    note = joined(said, ladder.lost(), _missing(ladder, of, gain))
    number = f"{gain.mean:+.4f}" if gain.n else "no seed has both"
    text = f"{name} at {iterations(counts[0])} minus at {counts[-1]}: {number}"
    known = gain.n or ladder.lost_runs()
    return Finding(ladder.evidence, text if known else "", gain, PValues(gain.above().confirm, refute), note)


def share_of_gain(count: int, fraction: float, ladder: Series) -> Finding:
    """(L_1 - L_count) - fraction (L_1 - L_last) > 0: linear, to avoid a ratio of noisy numbers."""
    counts = ladder.counts
    middle, first, last = ladder.nearest(count), counts[0], counts[-1]
    if not first < middle < last:
        return unknown(ladder.evidence, f"needs fewer and more than {count} iterations beside {count}")
    values = [ladder.values(c, "loss") for c in (first, middle, last)]
    seeds = sorted(values[0].keys() & values[1].keys() & values[2].keys())
    lost = ladder.lost(first, middle, last)
    if not seeds:
        return unknown(ladder.evidence, joined("no seed finished for all three counts", lost))
    fewest, between, most = ({s: v[s] for s in seeds} for v in values)
    whole, part = (ladder.interval(paired(fewest, other)) for other in (most, between))
    margin = ladder.interval({s: difference(fewest[s] - between[s], fraction * (fewest[s] - most[s])) for s in seeds})
    if ladder.lost_runs(first, middle, last):
        whole, margin = (i.censored(below=True, above=True) for i in (whole, margin))
    share = f"{part.mean / whole.mean:.0%}" if whole.mean > 0 else "no gain to share:"
    text = (
        f"{share} of the gain from {first} to {last} is there at {middle}; above {fraction:.0%} by {margin.mean:+.4f}"
    )
    return Finding(ladder.evidence, text, margin, all_of(whole.above(), margin.above()), lost)


first_steps, saturates = partial(share_of_gain, 3, FIRST), partial(share_of_gain, 5, SATURATED)


def goes_on(ladder: Series) -> Finding:
    """Loss of five iterations minus that of the most, paired by seed."""
    five, last = ladder.nearest(5), ladder.counts[-1]
    if not 4 <= five < last:
        return unknown(ladder.evidence, "needs more than 5 iterations beside 5")
    gain = ladder.gain(five, last, "loss")
    text = f"validation loss at {five} iterations minus at {last}: {gain.mean:+.4f}" if gain.n else ""
    return Finding(ladder.evidence, text, gain, gain.above(), joined(ladder.lost(), _missing(ladder, "loss", gain)))


def time_grows(ladder: Series) -> Finding:
    """Time of a step with the most iterations over that with the fewest."""
    counts = ladder.counts
    slow, fast = (ladder.values(c, "milliseconds") for c in (counts[-1], counts[0]))
    ratio = ladder.interval({s: slow[s] / fast[s] for s in sorted(slow.keys() & fast.keys())})
    text = f"time of a step, {counts[-1]} over {counts[0]} iterations: {ratio.mean:.3f}"
    why_not = _untimed(ladder)
    p = OPEN if why_not else all_of(ratio.above(1.0), ratio.below(SLIGHTLY))
    return Finding(ladder.evidence, text if ratio.n else "", ratio, p, why_not or f"slightly: up to {SLIGHTLY:g}",
                   zone=(1.0, SLIGHTLY), testable=not why_not)  # fmt: skip


def _untimed(ladder: Series) -> str:
    """Why the times of these runs decide nothing; empty if they may."""
    outcomes = [run.outcome for run in ladder.runs if run.outcome]
    if "cpu" in [outcome.environment.get("device") for outcome in outcomes]:
        return "not testable on a CPU: the claim is about GPUs and half a million tokens a step"
    shares = [outcome.others for outcome in outcomes]
    known = [share for share in shares if share is not None]
    if len(known) < len(shares):
        return "not testable: these runs do not say whether the machine was idle"
    if max(known, default=0.0) > IDLE:
        return f"not testable on a busy machine: other processes used up to {max(known):.0%} of its CPU time"
    return ""


def error_ordered(ladder: Series) -> Finding:
    """The smallest mean decrease of log LMO error between neighbouring counts, per seed, over common steps.

    A seed without one of the counts could have a smaller one there: it is left out; of lost runs it is assumed.
    """
    falls: dict[int, list[float]] = {}
    neighbours = list(pairwise(sorted(ladder.by_count)))
    for a, b in neighbours:
        crude, fine = ({run.seed: run.lmo_errors for run in ladder.by_count[count]} for count in (a, b))
        for seed in crude.keys() & fine.keys():
            steps = crude[seed].keys() & fine[seed].keys()
            if steps:
                ratios = [log(max(ZERO, crude[seed][s]) / max(ZERO, fine[seed][s])) for s in steps]
                falls.setdefault(seed, []).append(sum(ratios) / len(ratios))
    whole = {seed: min(values) for seed, values in falls.items() if len(values) == len(neighbours)}
    if not whole:
        return unknown(
            ladder.evidence, joined("no LMO error was recorded for every count: telemetry.every", ladder.lost())
        )
    least = ladder.interval(whole).censored(below=ladder.lost_runs() > 0, above=False)
    text = f"LMO error at one count over that at the next, smallest ratio: {exp(least.mean):.3g}"
    missing = len(falls) - len(whole)
    note = joined(f"{missing} seeds without every count are left out" if missing else "", ladder.lost())
    return Finding(ladder.evidence, text, least, least.above(), note)


def error_constant(ladder: Series) -> Finding:
    """p90/p10 of the LMO error after the first tenth of training; the worst count of each seed."""
    spread: dict[int, float] = {}
    for run in ladder.runs:
        late = [value for step, value in run.lmo_errors.items() if step > 0.1 * run.spec.steps and value > 0]
        if len(late) >= 3:
            spread[run.seed] = max(spread.get(run.seed, 0.0), quantile(late, 0.9) / quantile(late, 0.1))
    if not spread:
        return unknown(ladder.evidence, "needs three records of the LMO error after the first tenth of training")
    ratio = ladder.interval(spread).censored(below=False, above=ladder.lost_runs() > 0)
    text = f"p90/p10 of the LMO error in training, worst count: {ratio.mean:.2f}"
    note = joined(f"constant: below {CONSTANT:g}", ladder.lost())
    return Finding(ladder.evidence, text, ratio, ratio.below(CONSTANT), note, zone=(0.0, CONSTANT))


def _missing(ladder: Series, of: str, gain: Interval) -> str:
    """What the row says of runs without a value, and else of seeds that only some counts have."""
    lost = len(ladder.runs) - sum([len(ladder.values(count, of)) for count in ladder.by_count])
    if lost:
        return f"{lost} of {len(ladder.runs)} runs have no final value and are left out"
    alone = len(ladder.seeds) - gain.n
    return f"{alone} of {len(ladder.seeds)} seeds are not those of both arms and are left out" if alone else ""
