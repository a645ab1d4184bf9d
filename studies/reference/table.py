"""The paper's claims at two sizes: effects from the packed runs of this folder, beside the paper's numbers.

`python studies/reference/table.py --page docs/claims.md` puts the tables between the marks of the page.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from math import inf, isfinite, sqrt
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
from marks import between, page_file
from scipy.special import stdtrit

from inexact_muon_lab.cli.demo import copy_reference
from inexact_muon_lab.report import paper
from inexact_muon_lab.report.claims import CLAIMS, WITHDRAWN, Judged, judge
from inexact_muon_lab.report.load import StudyRecord, load
from inexact_muon_lab.spec import study
from inexact_muon_lab.spec.spec import RunSpec
from inexact_muon_lab.statistics import LEVEL, UNDECIDED
from inexact_muon_lab.statistics.intervals import POWER
from inexact_muon_lab.store.store import REFERENCE

HERE = Path(__file__).parent
GPT, IMAGES = ("2 layers", "2 layers, enwik8", "4 layers"), ("widths 8, 16, 16", "widths 16, 32, 32")
MOST = 10_000
"""More seeds than this are not counted: the effect is too small to be told from the edge of the claim."""
NOT_RUN = "[not run](#declared-and-not-run)"


@dataclass(frozen=True)
class Effect:
    """What is measured for a claim, the paper's number, and how its value is shown."""

    what: str
    paper: str
    shown: Callable[[float], str] = lambda value: f"{value:+.3f}"


def _power(value: float) -> str:
    return f"{2.0**value:.2f}"


def _plain(value: float) -> str:
    return f"{value:.2f}"


EFFECTS = {
    "lower-loss": Effect("loss of 1 iteration minus that of 8", f"{paper.GAIN[8]:+.3f}"),
    "first-steps": Effect("gain of 3 iterations minus half of that of 8", f"{paper.GAIN[3] - paper.GAIN[8] / 2:+.3f}"),
    "saturates": Effect("gain of 5 iterations minus 0.9 of that of 8", f"{paper.GAIN[5] - 0.9 * paper.GAIN[8]:+.3f}"),
    "goes-on": Effect("loss of 5 iterations minus that of 8", f"{paper.GAIN[8] - paper.GAIN[5]:+.3f}"),
    "time": Effect("time of a step, 8 iterations over 1", f"{paper.MINUTES[8] / paper.MINUTES[1]:.2f}", _plain),
    "lr-moves": Effect("best lr, 2 iterations over 5", f"{paper.LR_RATIO:.2f}", _power),
    "alpha-moves": Effect("best alpha, 2 iterations over 5", "above 1", _power),
    "region": Effect("share of log lr within 5 % of the best loss, 5 iterations minus 2", "above 0"),
    "level-region": Effect("share of log lr within 5 % of the lower best of both, 5 iterations minus 2", "above 0"),
    "error-ordered": Effect("smallest fall of log LMO error by a further iteration", "above 0"),
    "error-constant": Effect("p90/p10 of the LMO error in training, worst count", "1.1 to 2.1", _plain),
    "bounds": Effect("layers outside of the bounds", "0", lambda value: f"{value:.0f}"),
    "cnn-loss": Effect("training loss of 1 iteration minus that of 8", "above 0"),
    "best-accuracy": Effect("best accuracy of 8 iterations minus that of 1", "above 0"),
    "accuracy-region": Effect("share of cells with 95 % of the best accuracy of both, 8 iterations minus 1", "above 0"),
    "accuracy-gap": Effect("best minus worst accuracy over momentum, 1 iteration minus 8", "above 0"),
}


def size(study: StudyRecord) -> str:
    """The column of a study."""
    return column(study.runs[0].spec)


def column(spec: RunSpec) -> str:
    """The column of a run."""
    if hasattr(spec.problem, "widths"):
        return f"widths {', '.join(map(str, spec.problem.widths))}"
    return f"{spec.problem.layers} layers" + (", enwik8" if hasattr(spec.data, "path") else "")


def chosen(items: list[Judged], studies: dict[str, StudyRecord]) -> Judged:
    """Of studies of one size that which declares the claim and has its seeds, or the longest runs, or most seeds.

    One with an optimum inside of its grid goes before others: at the end of a grid a shift is that of the grid.
    """

    def rank(item: Judged) -> tuple[bool, bool, int, int]:
        study, found = studies[item.study], item.finding
        planned = study.declared is not None and item.claim.id in study.declared.width
        kept = planned and found.interval.n >= found.required > 0
        return not found.on_edge, kept, study.runs[0].spec.steps, found.interval.n

    return max(items, key=rank)


def levels(judged: list[Judged], withdrawn: int = 0) -> dict[str, float]:
    """One-sided level by claim before anything is decided: claims have equal shares, which their studies divide."""
    bodies = Counter(item.claim.id for item in judged if item.tested)
    return {claim: LEVEL / ((len(bodies) + withdrawn) * number) for claim, number in bodies.items()}


def seeds_to_decide(item: Judged, margin: float | None, level: float) -> int:
    """Seeds that tell the effect seen so far from the end of the claim or the margin with 80 % power; 0 if not MOST."""
    found, zone = item.finding.interval, item.finding.zone
    distance = min(abs(found.mean - end) for end in zone if isfinite(end))
    if margin is not None:
        distance = max(distance, margin - (found.mean if zone[1] == inf else -found.mean))
    return seeds_to_tell(found.spread, distance, found.n, MOST, level)


def seeds_to_tell(spread: float, distance: float, least: int = 2, most: int = MOST, level: float = LEVEL) -> int:
    """The fewest n of which a one-sided t test finds a mean at this distance with probability POWER; 0 if not `most`.

        distance >= (t(n-1, 1 - level) + t(n-1, POWER)) spread / sqrt(n)

    Without the second term the power is one half: the mean of n further values lies on either side of the truth.
    """
    for n in range(max(least, 2), most):
        if float(stdtrit(n - 1, 1.0 - level) + stdtrit(n - 1, POWER)) * spread <= distance * sqrt(n):
            return n
    return 0


def seconds(study: StudyRecord) -> float:
    """Of one run, the mean."""
    return fmean(sum(run.seconds.values()) for run in study.runs if run.outcome)


def cost(item: Judged, study: StudyRecord, level: float) -> str:
    """What deciding would take, by the spread so far."""
    if not item.finding.testable:
        return "not testable here"
    if item.finding.on_edge:
        return "open: an optimum lies at the end of its grid, [further step sizes](#declared-and-not-run) would tell"
    margin = study.declared.margin.get(item.claim.id) if study.declared else None
    wanted, has = seeds_to_decide(item, margin, level), item.finding.interval.n
    if not wanted:
        return f"open: {MOST} seeds would not tell"
    wanted = max(wanted, has + 1)
    hours = (wanted - has) * len(study.runs) / len({run.seed for run in study.runs}) * seconds(study) / 3600
    alone = f"{item.finding.verdict} by itself, " if item.finding.verdict != UNDECIDED else ""
    return f"open: {alone}{wanted} seeds would tell ({hours:.1f} core-hours more)"


def cell(item: Judged, study: StudyRecord, level: float) -> str:
    """Effect, interval, seeds and verdict."""
    found, shown = item.finding, EFFECTS[item.claim.id].shown
    words = item.verdict if item.verdict != UNDECIDED else cost(item, study, level)
    if found.count:
        return f"{found.statistic.split(' measured')[0]}; {words}"
    span = f"{shown(found.interval.low)} to {shown(found.interval.high)}"
    return f"{shown(found.interval.mean)} ({span}), {found.interval.n} seeds; {words}"


def table(judged: list[Judged], studies: dict[str, StudyRecord], columns: tuple[str, ...]) -> str:
    """A row a claim, a column a size."""
    lines = [f"| claim | effect | the paper | {' | '.join(columns)} |", "|---" * (3 + len(columns)) + "|"]
    for claim in (claim for claim in CLAIMS if claim.id in EFFECTS):
        mine = [item for item in judged if item.claim.id == claim.id and item.finding.statistic]
        by_size = [[item for item in mine if size(studies[item.study]) == name] for name in columns]
        if any(by_size):
            best = [chosen(items, studies) if items else None for items in by_size]
            level = levels(judged, WITHDRAWN).get(claim.id, LEVEL)
            cells = [cell(item, studies[item.study], level) if item else NOT_RUN for item in best]
            effect = EFFECTS[claim.id]
            lines.append(f"| {claim.sentence} | {effect.what} | {effect.paper} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def others(judged: list[Judged]) -> str:
    """Claims that have no size: bounds, and rules and policies from tables."""
    rest = [item for item in judged if item.claim.id not in EFFECTS and item.finding.statistic]
    lines = ["| claim | runs | evidence | verdict |", "|---|---|---|---|"]
    for item in rest:
        found = item.finding
        alone = f", {found.verdict} by itself" if found.verdict != item.verdict else ""
        words = item.verdict if item.verdict != UNDECIDED else f"open{alone}"
        why = f": {found.note}" if found.note else ""
        lines.append(f"| {item.claim.sentence} | {found.evidence} | {found.statistic}, {found.range} | {words}{why} |")
    return "\n".join(lines) + "\n"


def left(studies: dict[str, StudyRecord]) -> str:
    """Studies of this folder that have no runs yet, and what they cost."""
    plans = [plan for plan in map(study.load, sorted(HERE.glob("*.toml"))) if plan.name not in studies]
    each: dict[str, float] = {}
    for found in studies.values():
        each[size(found)] = max(seconds(found), each.get(size(found), 0.0))
    lines = []
    for plan in plans:
        one = each.get(column(plan.runs[0]))
        lines.append(f"- `{plan.name}`: {len(plan.runs)} runs" + (f" of {one:.0f} s." if one else "."))
    return "\n".join(lines or ["- None."]) + "\n"


def made() -> dict[str, str]:
    """The parts of the page by name, from the evidence that the demo copies."""
    with TemporaryDirectory() as folder:
        copy_reference(Path(folder))
        results = load(Path(folder) / REFERENCE)
        judged = judge(results, WITHDRAWN)
        studies = {study.name: study for study in results.studies}
        return {
            "language models": table(judged, studies, GPT),
            "images": table(judged, studies, IMAGES),
            "claims without a size": others(judged),
            "not run": left(studies),
        }


def written(page: str, parts: dict[str, str]) -> str:
    """The page with its parts between their marks."""
    return between(page, parts, "python studies/reference/table.py")


def main() -> None:
    """The command."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--page", type=page_file, required=True)
    given = parser.parse_args()
    given.page.write_text(written(given.page.read_text(), made()))


if __name__ == "__main__":
    main()
