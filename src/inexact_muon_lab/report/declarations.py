"""Studies that declare claims in advance: the number of seeds that a claim needs, and whether it has them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf

from inexact_muon_lab.report.finding import Finding, joined
from inexact_muon_lab.report.load import StudyRecord
from inexact_muon_lab.spec.study import Decide
from inexact_muon_lab.statistics import LEVEL, OPEN, PValues, seeds_needed


def level(declared: Decide) -> float:
    """One-sided level of the first step of Holm's procedure: the strictest in the family."""
    return LEVEL / len(declared.family)


def promised(finding: Finding, declared: Decide, claim: str) -> int | None:
    """Number of seeds by Stein's rule from the pilot's spread; None until the pilot is complete."""
    if claim not in declared.width or finding.interval.freedom + 1 < len(declared.pilot):
        return None
    return seeds_needed(finding.interval.spread, len(declared.pilot), declared.width[claim], level(declared))


def planned(finding: Finding, declared: Decide, claim: str, most: int) -> Finding:
    """A finding without its required seeds is undecided: looking early is not a valid test.

    Args:
        finding: as judged by the claim's function.
        declared: the study's declaration.
        claim: its id; a claim without a declared width is unchanged.
        most: the largest number of seeds that any claim of the study needs; more were added after looking.
    """
    margin, (low, high) = declared.margin.get(claim), finding.zone
    if margin is not None and finding.p != OPEN and (low, high) in ((0.0, inf), (-inf, 0.0)):
        # a claim of an effect above (or below) zero is refuted, too, if the effect is surely smaller than the margin
        enough = finding.interval.above(margin) if high == inf else finding.interval.below(-margin)
        note = joined(f"an effect below {margin:g} does not count", finding.note)
        finding = replace(finding, p=PValues(finding.p.confirm, enough.refute), note=note)
    if claim not in declared.width or finding.count or not finding.statistic:
        return finding
    required, has = promised(finding, declared, claim), finding.interval.n
    if required is None:
        note = f"the pilot has {has} of {len(declared.pilot)} seeds"
        return replace(finding, p=OPEN, note=joined(note, finding.note))
    if has < min(required, declared.most) or required > declared.most:
        limit = f", more than the {declared.most} that the study allows" if required > declared.most else ""
        note = f"promised {required} seeds from the pilot's spread{limit}, has {has}"
        return replace(finding, p=OPEN, required=required, note=joined(note, finding.note))
    late = f"{has - most} seeds were added after looking" if has > most else ""
    return replace(finding, required=required, note=joined(late, finding.note))


def sentences(study: StudyRecord) -> list[str]:
    """The study's declaration, for the page, with claims in words; empty if there is none."""
    lines = [declaration(study.title, study.declared, lambda claim: claim.replace("-", " "))] if study.declared else []
    return [*lines, f"{study.title}: this declaration was changed after runs had ended"] if study.redeclared else lines


def declaration(name: str, d: Decide, spell: Callable[[str], str] = str) -> str:
    """Family, pilot, widths, margins and stopping rule in one sentence; `spell` writes the name of a claim."""
    widths, margins = (
        ", ".join(f"{spell(claim)} {size:g}" for claim, size in sizes.items()) for sizes in (d.width, d.margin)
    )
    return (
        f"{name} declares: family {', '.join(map(spell, d.family))}; pilot of seeds {', '.join(map(str, d.pilot))}; "
        f"half-widths {widths}{'; margins ' + margins if margins else ''}; then as many seeds as Stein's rule gives "
        f"from the pilot's spread at a one-sided level of {level(d):.2%}, at most {d.most}, and no look before"
    )
