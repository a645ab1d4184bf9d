"""Open questions and their cost: interrupted runs, and seeds that claims still need."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import ceil
from pathlib import Path
from statistics import fmean

from inexact_muon_lab.report.claims import Judged, overall
from inexact_muon_lab.report.load import Results, StudyRecord
from inexact_muon_lab.statistics import UNDECIDED
from inexact_muon_lab.store.outcome import ENDED, Ended

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
            each = mean_seconds(study.runs)
            cost = _duration(len(unfinished) * each) if each else "their cost is not known yet"
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


def _needed(item: Judged, study: StudyRecord) -> str:
    finding, declared = item.finding, study.declared
    if declared is None or item.claim.id not in declared.width:
        return ""
    cells = max(Counter(run.seed for run in study.runs).values(), default=0)
    each, has, required = cells * (mean_seconds(study.runs) or 0.0), finding.interval.n, finding.required
    if finding.on_edge:
        return f"more values beyond the edge of the grid: {_duration(each * has / 2)} or more"
    if required > declared.most:
        return f"{required} seeds by the pilot's spread, more than the {declared.most} that the study allows"
    if required > has:
        more = "1 more seed" if required == has + 1 else f"{required - has} more seeds"
        return f"{more} by the pilot's spread: {_duration((required - has) * each)}"
    if not required:
        return ""  # the pilot is not complete: `cut` says so
    complete = f"it has its {required} seeds, which find a difference of {finding.interval.detectable:.2g}"
    return f"{complete}; to find a smaller one, declare a smaller width"


def _duration(seconds: float) -> str:
    """ "40 s", "3 min", "2.1 h", of one core."""
    text = f"{ceil(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
    return f"about {text if seconds >= 90 else f'{max(1, ceil(seconds))} s'} of one core"


def mean_seconds(runs: Iterable[Ended]) -> float | None:
    """Wall time of a run that has ended; None if none has."""
    times = [sum(run.outcome.seconds.values()) for run in runs if run.outcome and run.outcome.seconds]
    return fmean(times) if times else None
