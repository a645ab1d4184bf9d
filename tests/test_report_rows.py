"""The page's rows: one a claim, own runs and reference evidence told apart, what is open with its cost, colours."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from rich.console import Console

pytest.importorskip("altair", reason="the report needs the extra `lab`")

from inexact_muon_lab.report import load, more
from inexact_muon_lab.report.advice import advice
from inexact_muon_lab.report.build import build
from inexact_muon_lab.report.charts import RAMP, clipped, of_iterations
from inexact_muon_lab.report.claims import CLAIMS, judge
from inexact_muon_lab.report.figures import ORDER, figures
from inexact_muon_lab.report.page import Shown, claim_rows
from inexact_muon_lab.report.sizes import PAPER
from inexact_muon_lab.report.strips import strips
from inexact_muon_lab.spec.study import Decide
from inexact_muon_lab.statistics import CONFIRMED, REFUTED
from inexact_muon_lab.store import packing, store
from report_cases import LOSSES, bowl, grid, ladder, write
from report_tables import cotuning, write_tables
from test_report_pages import everything, inline_data

QUIET = Console(quiet=True)
RISING = dict(zip(LOSSES, sorted(LOSSES.values()), strict=True))


def add_reference(folder: Path, name: str, losses: dict[int, float] | None = None, seeds: int = 4) -> Path:
    """A packed ladder in a folder's reference evidence."""
    made = write(folder.parent / f"{folder.name}-{name}", ladder(losses, seeds=seeds), name)
    (folder / "reference").mkdir(parents=True, exist_ok=True)
    file = folder / "reference" / f"{name}.pack"
    packing.pack_all([made], file, QUIET)
    return file


def shown(folder: Path) -> Shown:
    results, reference = load.load(folder), load.reference(folder)
    reference_judged = judge(reference) if reference else []
    return Shown(results, judge(results), figures(results, reference), reference, reference_judged)


@pytest.mark.parametrize("packs", [0, 1, 2])
def test_reference_evidence_is_told_apart(packs: int, tmp_path: Path) -> None:
    own = tmp_path / "own"
    write(own / "gpt", ladder(seeds=3), "gpt")
    for index in range(packs):
        add_reference(own, f"lent-{index}", RISING)
    page = shown(own)
    rows = {row.claim.id: row for row in claim_rows(page)}
    assert list(rows) == [claim.id for claim in CLAIMS]
    assert rows["lower-loss"].verdict == CONFIRMED
    assert rows["lower-loss"].theirs == (REFUTED if packs else None)
    assert all(j.finding.evidence.startswith("reference: lent-") for j in rows["lower-loss"].reference_judged)
    assert len(rows["lower-loss"].reference_judged) == packs
    html = build(own, pictures=False).page.read_text()
    assert html.count("<h2>Reference evidence</h2>") == (packs > 0)
    assert html.count("reference: ✗ not confirmed") >= packs / 2
    panels = inline_data(html)["convergence"]
    assert len(panels) == 1 + packs  # type: ignore[arg-type]


def test_reference_evidence_never_changes_own_verdicts(tmp_path: Path) -> None:
    own = tmp_path / "own"
    write(own / "gpt", ladder(seeds=3), "gpt")
    before = [(j.claim.id, j.p) for j in judge(load.load(own))]
    add_reference(own, "gpt", RISING)  # of the same name as our own study
    write_tables(own / "reference", cotuning())
    assert [(j.claim.id, j.p) for j in judge(load.load(own))] == before
    assert [place.name for place in store.places(own)] == ["gpt"]
    packing.pack_all([own], tmp_path / "mine.pack", QUIET)
    assert {run.result["loss"] for run in load.load(tmp_path / "mine.pack").runs} == {
        run.result["loss"] for run in load.load(own).runs
    }
    reference = load.reference(own)
    assert reference is not None
    assert {study.name for study in reference.studies} == {"reference: gpt"}
    assert {table.origin for table in reference.tables.cotuning} == {"reference"}


@pytest.mark.parametrize("others", [0, 1])
def test_a_damaged_reference_is_a_sentence(others: int, tmp_path: Path) -> None:
    own = tmp_path / "own"
    write(own / "gpt", ladder(seeds=2), "gpt")
    for _ in range(others):
        add_reference(own, "good")
    bad = add_reference(own, "bad")
    content = bytearray(bad.read_bytes())
    content[-20] ^= 1
    bad.write_bytes(content)
    built = build(own, pictures=False)
    assert any("bad.pack" in problem for problem in built.problems)
    assert ("reference: good" in built.page.read_text()) == bool(others)


def test_pictures_show_intervals_but_not_of_counts(tmp_path: Path) -> None:
    judged = {j.claim.id: j for j in judge(load.load(write(tmp_path, ladder(seeds=3))))}
    drawn = {name: str(strips([item], [])) for name, item in judged.items()}
    assert 'class="range"' in drawn["lower-loss"]
    assert 'class="good"' in drawn["lower-loss"]
    assert 'class="range"' not in drawn["bounds"]
    assert 'class="count"' in drawn["bounds"]
    assert judged["bounds"].finding.range == "counted"
    assert drawn["theory"] == '<span class="soft">no data</span>'
    assert 'class="good lent"' in strips([], [judged["lower-loss"]])


def test_the_dot_is_on_the_claims_side_if_it_is_confirmed(tmp_path: Path) -> None:
    for item in judge(load.load(everything(tmp_path))):
        low, high = item.finding.zone
        if item.verdict == CONFIRMED and not item.finding.counted:
            assert low <= item.finding.interval.mean <= high, item.claim.id


def test_costs_are_of_the_seeds_that_a_claim_was_promised(tmp_path: Path) -> None:
    folder = write(tmp_path / "gpt", ladder(dict.fromkeys(LOSSES, 1.0), seeds=6), "study")
    (study,) = load.load(folder).studies
    declared = Decide(family=("lower-loss",), width={"lower-loss": 1e-3}, pilot=(0, 1, 2, 3, 4, 5))
    results = load.Results(folder, (load.replace(study, declared=declared),), load.load(folder).tables)
    (item,) = [j for j in judge(results) if j.claim.id == "lower-loss"]
    lacking = item.finding.wanted - 6
    assert lacking > 0
    of_a_seed = sum(sum(run.seconds.values()) for run in results.runs) / 6
    assert more.seconds_needed(item, results.studies[0]) == pytest.approx(lacking * of_a_seed)
    assert f"{lacking} more seeds" in more.costs(results, judge(results))["lower-loss"]


def test_runs_that_were_cut_are_said(tmp_path: Path) -> None:
    cases = ladder(seeds=3)
    for case in cases:
        if case.fields["seed"] == 2:
            case.state = "waiting"
    (tmp_path / more.COMMAND).write_text("inexact-muon demo --out here\n")
    write(tmp_path / "gpt", cases, "gpt")
    built = build(tmp_path, pictures=False)
    (sentence,) = built.left
    assert "gpt: 5 of 15 runs were cut or are running (seeds 2): about 51 s of one core" in sentence
    page = built.page.read_text()
    assert sentence in page
    assert "<code>inexact-muon demo --out here</code>" in page


@pytest.mark.parametrize(
    ("losses", "said"),
    [
        ({1: 2.0, 2: 1.8, 3: 1.6, 5: 1.0, 8: 1.0005}, "use polar-express(steps=5, normalise=frobenius) at lr 0.1"),
        ({1: 2.0, 2: 1.8, 3: 1.6, 5: 1.1, 8: 1.0}, "the best of 5 oracles, and no cheaper one"),
        ({1: 1.0, 2: 1.0001, 3: 1.0, 5: 1.0, 8: 0.9999}, "use polar-express(steps=1, normalise=frobenius) at lr 0.1"),
    ],
)
def test_advice_is_the_cheapest_oracle_that_is_sure_to_be_as_good(
    losses: dict[int, float], said: str, tmp_path: Path
) -> None:
    (sentence,) = advice(load.load(write(tmp_path, ladder(losses, seeds=12))))
    assert said in sentence


def test_an_oracle_has_one_colour_on_the_whole_page(tmp_path: Path) -> None:
    """Every scale over iterations, in every chart, gives a count the same colour; no other scale uses these colours."""
    page = build(everything(tmp_path), pictures=False).page.read_text()
    assert len({of_iterations(count) for count in range(1, 9)}) == 8
    seen = set()
    for panels in inline_data(page).values():
        for field, scale in re.findall(r'"color": \{"field": "(\w+)".*?"scale": (\{.*?\})', json.dumps(panels)):
            found = json.loads(scale)
            if "range" not in found:
                continue
            seen.add(field)
            if field == "iterations":
                assert found["range"] == [of_iterations(count) for count in found["domain"]]
            else:
                assert not set(found["range"]) & set(RAMP), field
    assert {"iterations", "optimizer"} <= seen


def test_clipped_scales_say_so(tmp_path: Path) -> None:
    assert clipped([1.0, 2.0], (1.0, 2.0)) == ""
    assert clipped([1.0, 3.0], (1.0, 2.0)) == " (above 2: drawn alike)"
    loss = bowl({2: (0.05, 0.8), 5: (0.1, 0.8)}, {2: 2.0, 5: 2.0})
    page = build(write(tmp_path, grid(loss)), pictures=False).page.read_text()
    assert "drawn alike" in json.dumps(inline_data(page)["heatmaps"])


def test_figures_are_in_the_papers_order_and_problems_share_no_axis(tmp_path: Path) -> None:
    write(tmp_path / "a", ladder(seeds=2), "one")
    write(tmp_path / "b", ladder(dict.fromkeys(LOSSES, 9.0), seeds=2), "other")
    drawn = figures(load.load(tmp_path))
    assert [figure.id for figure in drawn][: len(ORDER)] == list(ORDER)
    table = next(figure for figure in drawn if figure.id == "table-1")
    for panel in table.panels:
        assert len({row["oracle"] for row in panel.rows}) == 1
    assert not any("3.0675" in cell for line in table.table.rows for cell in line)
    assert any("3.0675" in cell for line in table.printed.rows for cell in line)
    errors = next(figure for figure in drawn if figure.id == "lmo-error")
    assert "sum of delta over 2 matrices" in json.dumps([panel.spec for panel in errors.panels])


def test_effects_over_size_end_with_the_papers(tmp_path: Path) -> None:
    own = tmp_path / "own"
    write(own / "gpt", ladder(seeds=3), "gpt")
    add_reference(own, "larger")
    results = load.load(own)
    sizes = next(f for f in figures(results, load.reference(own)) if f.id == "sizes")
    assert {row["runs"] for row in sizes.rows} == {"gpt", "reference: larger", "the paper"}
    for panel in sizes.panels:
        assert panel.rows[-1]["size"] == PAPER
    share = [row["value"] for row in sizes.rows if row["effect"] == "first" and row["runs"] == "gpt"]
    assert share == [pytest.approx((2.0 - 1.6) / (2.0 - 1.51), abs=0.01)]


def test_a_rule_that_moved_nothing_says_why(tmp_path: Path) -> None:
    content = json.loads(json.dumps(cotuning()["cotuning.json"]))
    for problem in content["problems"]:
        for target in problem["targets"]:
            keep = next(r for r in target["rules"] if r["rule"] == "keep")
            for rule in target["rules"]:
                if rule["rule"] == "paper":
                    rule |= {"lr": keep["lr"], "alpha": keep["alpha"]}
    for name, moved in (("still", content), ("moves", cotuning()["cotuning.json"])):
        write_tables(tmp_path / name, {"cotuning.json": moved})
        (note,) = {j.finding.note for j in judge(load.load(tmp_path / name)) if j.claim.id == "paper-rule"}
        assert ("moved nothing, because" in note) == (name == "still")
        assert ("delta is 1 for every oracle here" in note) == (name == "still")
