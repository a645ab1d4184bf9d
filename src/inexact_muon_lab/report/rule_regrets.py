"""Section on co-tuning: how well each rule transfers a tuned step size and momentum to another oracle."""

from __future__ import annotations

from collections.abc import Iterator

from inexact_muon_lab.report import charts, sources
from inexact_muon_lab.report.figure import Figure, Panel, Row, Table
from inexact_muon_lab.report.finding import Finding, joined, unknown
from inexact_muon_lab.report.ladders import oracle_in_words
from inexact_muon_lab.report.tables import Cotuned, Target, named
from inexact_muon_lab.statistics import CONFIRMED, Interval, all_of, any_of, interval, known_value, paired

KEEP = "keep"
SHARE = 1 / 3
"""Target regret of a rule, as a fraction of keep's mean regret."""
STILL = "the paper's rule moved nothing, because it uses delta alone and delta is 1 for every oracle here"


def figure(problems: tuple[Cotuned, ...]) -> Figure:
    """Regret by rule, and predicted against observed optimum."""
    caption = (
        "Regret: final loss with the values that a rule carries from the source oracle, minus the target's own best on "
        "the grid. A dot is a target, a diamond the mean with its interval; keep changes nothing. On the diagonal a "
        "rule is right."
    )
    head = ("problem", "source", "target", "best lr, alpha", "rule", "its lr, alpha", "loss", "regret")
    panels = [panel for p in problems for panel in _panels(p)]
    return Figure("co-tuning", sources.BEYOND, "Co-tuning: regret by rule", "Corollary 3", caption, panels,
                  Table(head, [line for p in problems for line in _lines(p)]), sources.COTUNING)  # fmt: skip


def _title(p: Cotuned) -> str:
    return named(p.title or p.problem, p.origin)


def _panels(p: Cotuned) -> Iterator[Panel]:
    dots: list[Row] = [
        {"kind": "target", "problem": p.problem, "rule": r.rule, "target": oracle_in_words(t.target),
         "regret": r.regret, "lr": r.lr, "alpha": r.alpha, "observed_lr": t.best.lr, "observed_alpha": t.best.alpha,
         "on_edge": t.on_edge}
        for t in p.targets for r in t.rules if r.regret is not None
    ]  # fmt: skip
    means: list[Row] = [
        {"kind": "mean", "problem": p.problem, "rule": r.rule, "regret": r.regret_mean, "low": r.regret_low,
         "high": r.regret_high}
        for r in sorted(p.rules, key=lambda r: r.regret_mean)
    ]  # fmt: skip
    if dots or means:
        rules = list(dict.fromkeys(row["rule"] for row in (*means, *dots)))
        regret = charts.quantity("regret", "regret (loss above the target's best)")
        y = charts.nominal("rule", sort=rules, axis={"labelLimit": 120})
        tips = [charts.nominal("target"), charts.nominal("on_edge")]
        title, height = f"{_title(p)}: regret by rule", max(160, 44 * len(rules))
        yield charts.intervals(title, [*dots, *means], regret, y, height, tips)
    for quantity, label in (("lr", "step size"), ("alpha", "momentum weight")) if dots else ():
        yield charts.diagonal(f"{_title(p)}: {label}", dots, f"observed_{quantity}", quantity, label)


def _lines(p: Cotuned) -> Iterator[tuple[str, ...]]:
    for t in p.targets:
        best = f"{t.best.lr:.3g}, {t.best.alpha:.3g}{' (edge)' if t.on_edge else ''}"
        for r in t.rules:
            numbers = ("-" if v is None else f"{v:.4f}" for v in (r.loss, r.regret))
            yield _title(p), p.source, t.target, best, r.rule, f"{r.lr:.3g}, {r.alpha:.3g}", *numbers


def paper_beats_keep(p: Cotuned) -> Finding:
    """Regret of keep minus regret of the paper's rule, by target; zero for sure if it carries keep's values."""
    gain = _less(p.targets, KEEP, "paper")
    carried = [{r.rule: (r.lr, r.alpha) for r in t.rules} for t in p.targets]
    moves = any("paper" in c and c["paper"] != c.get(KEEP) for c in carried)
    if gain.identical and not moves:
        gain = known_value(0.0, gain.n)
    text = f"regret of keep minus that of the paper's rule: {gain.mean:+.4f}" if gain.n else ""
    note = joined("" if moves else STILL, _missing(p, gain.n))
    return Finding(_title(p), text, gain, gain.above(), note, "target")


def a_third_of_keep(p: Cotuned) -> Finding:
    """A third of keep's regret minus a rule's, by target, without targets whose best is on the grid's edge.

    Such targets would flatter a rule. keep itself must have a positive regret.
    """
    inner = [t for t in p.targets if not t.on_edge]
    there = interval(_by_target(inner, KEEP)).censored(below=False, above=bool(_lost(inner, KEEP)))
    rules = dict.fromkeys(r.rule for t in inner for r in t.rules if r.rule != KEEP)
    margins = {rule: margin for rule in rules if (margin := _less(inner, KEEP, rule, SHARE)).n}
    if not margins:
        return unknown(_title(p), "no target whose best lies inside the grid", "target")
    best = max(margins, key=lambda rule: margins[rule].mean)
    text = f"best rule {best}: a third of keep's regret minus its own {margins[best].mean:+.4f}"
    unclear = f"keep's own regret, {there.mean:+.4f}, is not clearly above zero"
    note = joined("" if there.above().verdict() == CONFIRMED else unclear, _missing(p, margins[best].n))
    pvalues = all_of(there.above(), any_of(*(m.above() for m in margins.values())))
    return Finding(_title(p), text, margins[best], pvalues, note, "target")


def _less(targets: list[Target], first: str, second: str, share: float = 1.0) -> Interval:
    """share * regret of the first rule minus that of the second, by target.

    Where one of them diverged its regret is larger than any.
    """
    one, two = (_by_target(targets, rule) for rule in (first, second))
    gain = interval(paired({target: share * regret for target, regret in one.items()}, two))
    return gain.censored(bool(_lost(targets, second) & one.keys()), bool(_lost(targets, first) & two.keys()))


def _lost(targets: list[Target], rule: str) -> set[str]:
    """Targets on which a rule's values diverged."""
    return {t.target for t in targets for r in t.rules if r.rule == rule and r.regret is None}


def _by_target(targets: list[Target], rule: str) -> dict[str, float]:
    return {t.target: r.regret for t in targets for r in t.rules if r.rule == rule and r.regret is not None}


def _missing(p: Cotuned, used: int) -> str:
    missing = len(p.targets) - used
    said = f"{missing} of {len(p.targets)} targets are left out: on the grid's edge, or diverged" if missing else ""
    diverged = sorted({r.rule for t in p.targets for r in t.rules if r.regret is None})
    return joined(said, f"diverged, which counts against the rule: {', '.join(diverged)}" if diverged else "")
