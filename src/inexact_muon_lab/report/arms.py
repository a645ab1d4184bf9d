"""Arms of a study against each other: is one better, and is it the arm or what moved with it?

An arm is better only if its loss is below that of the arm it is compared with *and* below that of every control, an
arm that gives the other one what moves with this one (its decay, its step size, its length). Arms that differ in a
field that the study does not declare are not compared.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from inexact_muon_lab.report.figure import Table
from inexact_muon_lab.report.load import Results, StudyRecord
from inexact_muon_lab.report.records import RunRecord
from inexact_muon_lab.spec.arms import Compare, differences, trained
from inexact_muon_lab.statistics import CONFIRMED, OPEN, REFUTED, Interval, PValues, all_of, difference, interval
from inexact_muon_lab.store.outcome import ENDED


@dataclass
class Against:
    """An arm minus another one, seed by seed.

    Attributes:
        differs: (field, value of the arm, value of the other, "arm", "own" or "undeclared").
        diverged: seeds of which one of the two diverged or failed.
        environment: what differs in data, versions or CPU between runs of one seed, or between two runs of one arm.
        undeclared: why the two do not compare; empty if they do.
        moved: rates at which the two have values of their own.
    """

    other: str
    loss: Interval
    differs: tuple[tuple[str, Any, Any, str], ...]
    diverged: tuple[int, ...] = ()
    environment: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        fields = [field for field, _, _, role in self.differs if role == "undeclared"]
        self.undeclared = [*fields, *self.environment]
        self.moved = [field for field, _, _, role in self.differs if role == "own"]


@dataclass
class Comparison:
    """The claim that one arm of a study ends lower than another.

    Attributes:
        level: mean loss of the arm it is compared with.
        margin: the smallest gain that counts, a loss.
        held: what the study declares to be equal.
        parts: the arm it is compared with and the controls.
        verdict: by itself: comparisons of a study are declared, one primary one each.
    """

    study: str
    title: str
    arm: str
    first: Against
    controls: tuple[Against, ...]
    level: float
    margin: float
    held: str

    def __post_init__(self) -> None:
        self.parts = (self.first, *self.controls)
        self.verdict = self.p.verdict()

    @property
    def p(self) -> PValues:
        """Better than the other arm and than every control; refuted if the gain over one is surely below the margin."""
        if any(part.undeclared or part.diverged for part in self.parts):
            return OPEN
        confirm = all_of(*(part.loss.below(0.0) for part in self.parts)).confirm
        refute = all_of(*(part.loss.below(-self.margin) for part in self.parts)).refute
        uncontrolled = self.first.moved and not self.controls
        return PValues(1.0 if uncontrolled else confirm, refute)

    @property
    def sentence(self) -> str:
        parts = self.parts
        if fields := sorted({field for part in parts for field in part.undeclared}):
            return f"not comparable: the arms differ in {', '.join(fields)}, which the study does not declare"
        if missing := [part.other for part in parts if not part.loss.n and not part.diverged]:
            return f"open: no seed has ended in {self.arm} and in {', '.join(missing)}"
        if seeds := sorted({seed for part in parts for seed in part.diverged}):
            return f"open: an arm diverged or failed for seeds {', '.join(map(str, seeds))}"
        if self.verdict == CONFIRMED:
            return "better than the other arm" + (" and than every control" if self.controls else "")
        if self.verdict == REFUTED:
            gain = f"a gain of {self.margin:.2g} or more is excluded" if self.margin else "it is not lower"
            return f"not better: {gain}"
        if self.first.moved and not self.controls:
            return f"open: no control arm has its {' and '.join(self.first.moved)}"
        return "open: these seeds do not tell"


def comparisons(results: Results) -> list[Comparison]:
    """Those that the studies declare, in their order."""
    return [one for study in results.studies if study.compare for one in _of(study, study.compare)]


def _of(study: StudyRecord, compare: Compare) -> Iterator[Comparison]:
    runs: dict[str, dict[int, RunRecord]] = defaultdict(dict)
    twofold: dict[str, set[str]] = defaultdict(set)
    for run in study.runs:
        arm = compare.arm_of(run.spec)
        if arm is not None and run.state in ENDED:
            # two runs of an arm and seed: which of them counts is not said
            twofold[arm.name] |= differences(runs[arm.name].setdefault(run.seed, run).spec, run.spec).keys()
    for arm in (arm for arm in compare.arm if arm.against):
        first, *controls = (
            _against(name, runs[arm.name], runs[name], compare, twofold[arm.name] | twofold[name])
            for name in (arm.against, *arm.controls)
        )
        losses = [run.loss for run in runs[arm.against].values() if run.loss is not None]
        level = sum(losses) / max(1, len(losses))
        fields = trained(study.runs[0].spec)
        values = ", ".join(f"{field.removeprefix('optimizer.')} {fields.get(field)}" for field in compare.held)
        own = ", ".join(field.removeprefix("optimizer.") for field in compare.own) or "nothing"
        held = f"{arm.name}: tuned for each arm on other seeds: {own}; held equal: {values or 'the rest'}"
        about = (study.name, study.title, arm.name, first, tuple(controls))
        yield Comparison(*about, level, compare.margin * level, held)


def _against(
    name: str, mine: dict[int, RunRecord], theirs: dict[int, RunRecord], compare: Compare, twofold: set[str]
) -> Against:
    """Of the seeds that have ended in both arms; a seed in which one diverged or failed has no difference."""
    pairs = [(mine[seed], theirs[seed]) for seed in sorted(mine.keys() & theirs.keys())]
    losses = {a.seed: difference(a.loss, b.loss) for a, b in pairs if a.loss is not None and b.loss is not None}
    changes = {f: v for a, b in pairs for f, v in differences(a.spec, b.spec).items()}
    roles = dict.fromkeys(compare.own, "own") | dict.fromkeys(compare.of, "arm")
    differs = tuple((field, a, b, roles.get(field, "undeclared")) for field, (a, b) in changes.items())
    other = set(twofold)
    for one, two in ((a.outcome.environment, b.outcome.environment) for a, b in pairs if a.outcome and b.outcome):
        other |= {name for name in one.keys() | two.keys() if one.get(name) != two.get(name)}
    diverged = tuple(a.seed for a, _ in pairs if a.seed not in losses)
    return Against(name, interval(losses), differs, diverged, tuple(sorted(other)))


def tables(compared: Iterable[Comparison]) -> list[Table]:
    """For each comparison: the differences of losses, and under it what differs between the arms."""

    def signed(loss: Interval) -> str:
        return f"{loss.mean:+.4f} ({loss.low:+.4f} to {loss.high:+.4f})" if loss.n > 1 else f"{loss.mean:+.4f}"

    def short(value: Any) -> str:
        return f"{value:.4g}" if isinstance(value, float) else "none" if value is None else str(value)

    output = []
    for one in compared:
        losses = [(part.other, signed(part.loss), f"{part.loss.n} seeds") for part in one.parts]
        title = f"{one.arm}: {one.sentence} ({one.held})"
        output.append(Table(("minus", "loss, 95 % interval", "sample"), losses, title))
        fields = [
            (part.other, field, short(a), short(b), role) for part in one.parts for field, a, b, role in part.differs
        ]
        output.append(Table(("against", "field", one.arm, "the other", "declared as"), fields, "what differs"))
    return output


def unmatched(study: StudyRecord) -> list[str]:
    """A sentence if oracles of a study cannot be compared because each was trained in a setting of its own."""
    settings: dict[str, list[RunRecord]] = defaultdict(list)
    for run in study.runs:
        if run.oracle is not None and study.compare is None:
            settings[run.setting].append(run)
    groups = [(runs[0], {str(run.spec.polar) for run in runs}) for runs in settings.values()]
    lines = []
    for (other, theirs), (run, oracles) in combinations(groups, 2):
        same = run.spec.problem == other.spec.problem and run.optimizer == other.optimizer  # else no comparison
        if same and not oracles & theirs:
            fields = [f for f in differences(run.spec, other.spec) if f not in ("optimizer.polar", "optimizer.lr")]
            mine = f"{min(oracles)} and {min(theirs)}"
            lines.append(f"{study.name}: {mine} are not compared: they differ in {', '.join(fields)}")
    return lines
