"""The command `decide`."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from math import inf
from pathlib import Path

import msgspec
from rich.console import Console

from inexact_muon._text import nearest
from inexact_muon.sheet import Row, Sheet
from inexact_muon_lab.decide.needs import Need, needs, with_seeds
from inexact_muon_lab.errors import LabError, writing
from inexact_muon_lab.report import load
from inexact_muon_lab.report.build import announce, build
from inexact_muon_lab.report.claims import CLAIMS, judge
from inexact_muon_lab.report.declarations import declaration
from inexact_muon_lab.report.open_costs import COMMAND
from inexact_muon_lab.spec import study
from inexact_muon_lab.spec.decode import decode as decode_file
from inexact_muon_lab.spec.decode import read_toml
from inexact_muon_lab.spec.study import StudyRuns
from inexact_muon_lab.statistics import UNDECIDED
from inexact_muon_lab.store import packing
from inexact_muon_lab.store.files import replace
from inexact_muon_lab.sweep.board import clock
from inexact_muon_lab.sweep.engines import Engine
from inexact_muon_lab.sweep.sweep import sweep

UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0}


def decide(
    paths: Sequence[Path],
    out: Path,
    start: Callable[[], Engine],
    console: Console,
    claims: Sequence[str] = (),
    budget: float | None = None,
    packed: Sequence[Path] = (),
    page: bool = True,
) -> list[Need]:
    """Run pilots, then what verdicts need in order of cost within the budget; write the page. Returns remaining needs.

    All state is in the stores: started again, it continues.

    Args:
        paths: study files with a table [decide].
        out: folder of the stores, one per study, and of the page.
        claims: default: all that the studies declare.
        budget: seconds; None for no limit.
        packed: evidence to start from.
    """
    plans = [_plan(path) for path in paths]
    _check(plans, claims)
    serves = {file: [plan.name for plan in plans if packing.serves(file, plan)] for file in packed}
    for file, users in serves.items():
        if not users:
            raise LabError(f"{file}: no run of {', '.join(plan.name for plan in plans)} to go on from")
    for plan in plans:
        if files := [file for file, users in serves.items() if plan.name in users]:
            packing.import_packed(files, out / plan.name, plan)
    for plan in plans:
        if plan.decide:
            console.print(declaration(plan.name, plan.decide), highlight=False, soft_wrap=True)
    if page:
        with writing(out):
            out.mkdir(parents=True, exist_ok=True)
        replace(out / COMMAND, f"inexact-muon decide {' '.join(map(str, paths))} --out {out}\n".encode())
    until = time.monotonic() + (inf if budget is None else budget)
    try:
        with closing(start()) as engine:
            for plan in plans:
                console.print(f"{plan.name}: pilot, {len(plan.runs)} runs", highlight=False)
                _sweep(plan, out, engine, console, until)
            statuses = _spend(plans, out, engine, console, claims, until)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"finished runs are stored in {out}; the same command resumes") from None
    show(statuses, console)
    if page:
        announce(build(out, console), console)
    return statuses


def _spend(
    plans: Sequence[StudyRuns], out: Path, engine: Engine, console: Console, claims: Sequence[str], until: float
) -> list[Need]:
    """Repeatedly run what the cheapest undecided claim needs, if its cost fits into the time that remains.

    A cost that is not known fits only if there is no limit.
    """
    statuses = assess(plans, out, engine.slots, claims)
    show(statuses, console)
    while True:
        remaining = until - time.monotonic()
        fitting = [n for n in statuses if n.runs and (inf if n.seconds is None else n.seconds) <= remaining]
        if not fitting:
            return statuses
        cheapest = min(fitting, key=lambda n: n.seconds or 0.0)
        sentence = f"{cheapest.study}, {cheapest.item.claim.id}: {cheapest.why}: {len(cheapest.runs)} runs, "
        console.print(sentence + clock(cheapest.seconds), highlight=False, soft_wrap=True)
        plan = next(p for p in plans if p.name == cheapest.study)
        more = msgspec.structs.replace(plan, runs=tuple({s.id: s for s in (*plan.runs, *cheapest.runs)}.values()))
        _sweep(more, out, engine, console, until)
        statuses = assess(plans, out, engine.slots, claims)


def _sweep(plan: StudyRuns, out: Path, engine: Engine, console: Console, until: float) -> None:
    sweep(plan, out / plan.name, lambda: engine, console, enough=lambda: time.monotonic() >= until, close=False)


def assess(plans: Sequence[StudyRuns], out: Path, slots: int, claims: Sequence[str]) -> list[Need]:
    """Status and needs of every declared claim, from the stores."""
    judged = judge(load.load(out))
    return [need for plan in plans for need in needs(judged, plan, out / plan.name, slots, claims)]


def show(statuses: Sequence[Need], console: Console) -> None:
    """A table with one row per claim: verdict, seeds, needs and their cost on this machine."""
    rows = []
    for need in statuses:
        required = str(need.required) if need.required else "?"
        cost = clock(need.seconds) if need.runs else ""
        verdict = need.item.verdict if need.item.verdict != UNDECIDED else "open"
        missing = str(len(need.runs)) if need.runs else ""
        about = (need.item.claim.id, need.item.finding.evidence, verdict)
        rows.append(Row((*about, str(need.has), required, missing, cost, need.why)))
    columns = ("claim", "evidence", "verdict", "seeds", "wanted", "runs left", "cost", "why")
    words = ("claim", "evidence", "verdict", "why")
    title = "Claims: what they have, what they need, what that costs on this machine (h:min:s)"
    Sheet(title, columns, rows, aligned_left=words, prose=("evidence", "why")).print(console)


def seconds(text: str) -> float | None:
    """ "40m", "2h", "1h30m", "90s"; None for an empty text."""
    if not text:
        return None
    parts = re.findall(r"(\d+(?:\.\d+)?)([hms])", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise LabError(f"--budget must look like 40m, 2h, 1h30m or 90s, got {text!r}")
    return sum(float(number) * UNITS[unit] for number, unit in parts)


def _plan(path: Path) -> StudyRuns:
    """The pilot of a study, seed by seed."""
    written = decode_file(read_toml(path), study.Study, str(path))
    if written.decide is None:
        raise LabError(f"{path} has no table [decide]: declare family and width there (docs/lab.md)")
    plan = study.plan(msgspec.structs.replace(written, seeds=written.decide.pilot), str(path))
    first = written.decide.pilot[0]
    cells = [spec for spec in plan.runs if spec.seed == first]
    return msgspec.structs.replace(plan, runs=with_seeds(cells, written.decide.pilot))


def _check(plans: Sequence[StudyRuns], claims: Sequence[str]) -> None:
    """Raise on unknown claims and on studies with the same name."""
    known = [claim.id for claim in CLAIMS]
    declared = {name for plan in plans if plan.decide for name in plan.decide.width}
    for name in (*claims, *(name for plan in plans if plan.decide for name in plan.decide.family)):
        if name not in known:
            raise LabError(f"there is no claim {name!r}: {nearest(name, known)}")
    for name in claims:
        if name not in declared:
            raise LabError(f"no study declares a width for {name!r}: {nearest(name, declared)}")
    names = [plan.name for plan in plans]
    if len(set(names)) < len(names):
        raise LabError(f"two studies have one name: {', '.join(names)}")
