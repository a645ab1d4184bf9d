"""Open questions and their cost: interrupted runs, and seeds that claims still need."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import ceil
from pathlib import Path

from inexact_muon_lab.report.claims import Judged, overall
from inexact_muon_lab.report.load import Results, RunRecord, StudyRecord
from inexact_muon_lab.statistics import UNDECIDED
from inexact_muon_lab.store.outcome import ENDED

COMMAND = "command.txt"
"""A file beside the stores with the command that made and continues them."""


def command(folder: Path) -> str:
    """The command that continues; empty if unknown."""
    file = folder / COMMAND
    return file.read_text(errors="replace").strip() if file.is_file() else ""


def cut(results: Results) -> list[str]:
    """A sentence on each study with unfinished runs: how many, of which seeds, at what cost."""
    sentences = []
    for study in results.studies:
        unfinished = [run for run in study.runs if run.state not in ENDED]
        if unfinished:
            seeds = ", ".join(map(str, sorted({run.seed for run in unfinished})))
            each = _mean(study.runs)
            cost = duration(len(unfinished) * each) if each else "their cost is not known yet"
            share = f"{len(unfinished)} of {len(study.runs)} runs"
            sentences.append(f"{study.title}: {share} were cut or are running (seeds {seeds}): {cost}")
    return sentences


def costs(results: Results, judged: list[Judged]) -> dict[str, str]:
    """{claim: what an undecided one still needs}, for those whose study declares it."""
    studies = {study.name: study for study in results.studies if study.declared}
    verdicts = overall(judged)
    sentences: dict[str, str] = {}
    for item in judged:
        study = studies.get(item.study)
        if study and verdicts[item.claim.id] == UNDECIDED and (sentence := _needed(item, study)):
            sentences.setdefault(item.claim.id, sentence)
    return sentences


def seconds_needed(item: Judged, study: StudyRecord) -> float:
    """Core seconds for the seeds that a claim still needs."""
    has, required = item.finding.interval.n, item.finding.required
    return max(0, required - has) * _seed(study.runs)


def duration(seconds: float) -> str:
    """ "40 s", "3 min", "2.1 h", of one core."""
    if seconds < 90:
        text = f"{max(1, ceil(seconds))} s"
    else:
        text = f"{ceil(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
    return f"about {text} of one core"


def _needed(item: Judged, study: StudyRecord) -> str:
    finding, declared = item.finding, study.declared
    if declared is None or item.claim.id not in declared.width:
        return ""
    if finding.on_edge:
        return (
            f"more values beyond the edge of the grid: {duration(_seed(study.runs) * finding.interval.n / 2)} or more"
        )
    if finding.required > declared.most:
        return f"{finding.required} seeds by the pilot's spread, more than the {declared.most} that the study allows"
    if finding.required > finding.interval.n:
        more = finding.required - finding.interval.n
        return (
            f"{more} more seed{'' if more == 1 else 's'} by the pilot's spread: {duration(seconds_needed(item, study))}"
        )
    if not finding.required:
        return ""  # the pilot is not complete: `cut` says so
    complete = f"it has its {finding.required} seeds, which find a difference of {finding.interval.detectable:.2g}"
    return f"{complete}; to find a smaller one, declare a smaller width"


def _mean(runs: Sequence[RunRecord]) -> float:
    times = [sum(run.seconds.values()) for run in runs if run.seconds]
    return sum(times) / max(1, len(times))


def _seed(runs: Sequence[RunRecord]) -> float:
    """Mean seconds of all cells of one seed."""
    cells = max(Counter(run.seed for run in runs).values(), default=0)
    return cells * _mean(runs)
