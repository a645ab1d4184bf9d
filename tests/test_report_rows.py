"""The page's rows: one a claim, own runs and reference evidence told apart, what is open with its cost, colours."""

from __future__ import annotations

import io
import json
import re
from math import ceil
from pathlib import Path

import pytest
from rich.console import Console

pytest.importorskip("altair", reason="the report needs the extra `lab`")

from inexact_muon_lab.report import load, open_costs, paper
from inexact_muon_lab.report.advice import advice
from inexact_muon_lab.report.build import TEXT, announce, build
from inexact_muon_lab.report.charts import RAMP, clipped, of_iterations
from inexact_muon_lab.report.claims import CLAIMS, Judged, deciding, judge
from inexact_muon_lab.report.declarations import sentences
from inexact_muon_lab.report.figures import figures
from inexact_muon_lab.report.finding import COUNT
from inexact_muon_lab.report.forest import SIDE, WIDTH, ClaimGroup, ClaimRow, claim_groups, interval_text, numbers
from inexact_muon_lab.report.ladders import in_words
from inexact_muon_lab.report.page import lead
from inexact_muon_lab.report.shown import Shown
from inexact_muon_lab.spec.study import Decide
from inexact_muon_lab.statistics import CONFIRMED, REFUTED
from inexact_muon_lab.store import packing, store
from report_cases import LOSSES, Case, bowl, grid, ladder, write
from report_tables import cotuning, theory, write_tables
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
    rows = {row.claim.id: row for group in claim_groups(page) for row in group.rows}
    assert set(rows) == {claim.id for claim in CLAIMS}
    assert rows["lower-loss"].verdict == CONFIRMED
    assert rows["lower-loss"].theirs == (REFUTED if packs else None)
    assert all(j.finding.evidence.startswith("reference: lent-") for j in rows["lower-loss"].reference_judged)
    assert len(rows["lower-loss"].reference_judged) == packs
    html = build(own, pictures=False).page.read_text()
    assert html.count("<span>Reference evidence:</span>") == (packs > 0)
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


def drawn(judged: list[Judged], claim: str, reference: list[Judged] | None = None) -> str:
    own = [item for item in judged if item.claim.id == claim]
    lent = [item for item in reference or [] if item.claim.id == claim]
    row = ClaimRow(next(c for c in CLAIMS if c.id == claim), own, lent)
    return str(ClaimGroup([row]).draw(row))


def test_pictures_show_intervals_but_not_of_counts(tmp_path: Path) -> None:
    judged = judge(load.load(write(tmp_path, ladder(seeds=3))))
    assert 'class="range"' in drawn(judged, "lower-loss")
    assert 'class="good"' in drawn(judged, "lower-loss")
    assert 'class="range"' not in drawn(judged, "bounds")
    assert 'class="count"' in drawn(judged, "bounds")
    assert next(j for j in judged if j.claim.id == "bounds").finding.range == "counted"
    assert drawn(judged, "theory") == '<span class="soft">no data</span>'
    assert 'class="good reference"' in drawn([], "lower-loss", judged)
    assert "the paper: +0.0652" in drawn(judged, "lower-loss")


def test_the_body_that_decides_is_drawn_and_it_may_be_the_last_of_many(tmp_path: Path) -> None:
    for k in range(6):
        write(tmp_path / f"open{k}", ladder(dict.fromkeys(LOSSES, 2.0), seeds=3), f"a{k}")
    write(tmp_path / "decides", ladder(seeds=3), "z")
    judged = [j for j in judge(load.load(tmp_path)) if j.claim.id == "lower-loss"]
    assert len(judged) == 7
    assert [j.verdict for j in judged].count(CONFIRMED) == 1
    found = deciding(judged)
    assert found is not None
    assert (found.study, found.verdict) == ("z", CONFIRMED)
    assert 'class="good"' in drawn(judged, "lower-loss")
    write(tmp_path / "refutes", ladder(RISING, seeds=3), "b")
    judged = judge(load.load(tmp_path))
    assert 'class="bad"' in drawn(judged, "lower-loss"), "one refutation decides"


def test_the_first_sentences_have_the_numbers_of_the_plot(tmp_path: Path) -> None:
    """Of several bodies that agree the one with the smallest p is both drawn and quoted; the terminal says the same."""
    for seeds, spread in ((3, 1.0), (8, 1.1), (4, 0.9)):
        losses = {count: 2.0 + spread * (loss - 2.0) for count, loss in LOSSES.items()}
        write(tmp_path / str(seeds), ladder(losses, seeds=seeds), f"s{seeds}")
    page = shown(tmp_path)
    rows = {row.claim.id: row for group in claim_groups(page) for row in group.rows}
    for item, words in lead(page):
        assert f"({numbers(item).partition('(')[2].rstrip(')')}" in words or item.finding.count
        assert rows[item.claim.id].numbers[0] == numbers(item)
    console = Console(record=True, file=io.StringIO(), width=200)
    announce(build(tmp_path, pictures=False), console)
    said = console.export_text(clear=False)
    assert all(item.finding.statistic in said for item, _ in lead(page))
    assert said.count(": use ") == 1, "one recommendation; the page has the rest"
    assert "2 more of these are on the page" in said


def test_claims_of_one_unit_share_a_scale_that_holds_the_papers_values(tmp_path: Path) -> None:
    for group in claim_groups(shown(everything(tmp_path))):
        texts = {row.claim.id: str(group.draw(row)) for row in group.rows}
        assert group.scale or group.unit is COUNT
        ends = [float(x) for text in texts.values() for x in re.findall(r' c?x[12]?="([-\d.]+)"', text)]
        assert all(SIDE <= x <= WIDTH - SIDE for x in ends)
        ticks = [float(x) for x in re.findall(r'<text x="([\d.]+)"', str(group.scale))]
        assert ticks == sorted(ticks)
        assert len(ticks) >= 2 or group.unit is COUNT
        for row in group.rows:
            assert ('class="paper"' in texts[row.claim.id]) == (row.claim.paper is not None and bool(row.numbers))


def test_only_declared_claims_are_counted_and_every_tally_adds_up(tmp_path: Path) -> None:
    own = tmp_path / "own"
    family = ("lower-loss", "first-steps", "lr-moves")
    declared = Decide(family=family, width={"lower-loss": 1.0}, pilot=(0, 1, 2))
    write(own / "gpt", ladder(seeds=3), "gpt", decide=declared)
    add_reference(own, "lent")
    write_tables(own, theory())
    page = shown(own)
    assert page.counted == set(family)
    assert {sum(found.values()) for _, found in page.boards} == {3}
    built = build(own, pictures=False)
    console = Console(record=True, file=io.StringIO(), width=200)
    announce(built, console)
    assert "3 claims: 2 confirmed, 0 not confirmed, 1 not enough" in console.export_text()
    text = (own / TEXT).read_text()
    assert "Your runs, 3 claims: 2 confirmed, 0 not confirmed, 1 not enough" in text
    assert "From five iterations" not in text.partition("## Claims")[0], "only these are findings"
    assert "<h2>3 claims, and what decides each</h2>" in built.page.read_text()
    write(tmp_path / "plain", ladder(seeds=3), "gpt")
    plain = shown(tmp_path / "plain")
    assert plain.counted == {j.claim.id for j in plain.judged if j.finding.statistic}, (
        "without a declaration: with data"
    )


def test_the_first_sentences_have_numbers_and_names_are_words(tmp_path: Path) -> None:
    write(tmp_path / "a", ladder(seeds=3), "gpt-x", "A byte GPT by Polar Express iterations")
    write(tmp_path / "b", ladder(seeds=3, images=True), "cnn-x", "Digits")
    sentences = lead(shown(tmp_path))
    assert len(sentences) == 3
    for item, words in sentences:
        assert re.search(r"\d \(.*\d to .*\d( nats| points)?, 3 seeds\)", words), words
        assert item.claim.unit.suffix in words
        assert item.finding.evidence in ("A byte GPT by Polar Express iterations, Polar Express", "Digits, Jordan")
    page = build(tmp_path, pictures=False).page.read_text()
    first, found = page.index('id="findings"'), page.index('id="claims"')
    assert "<b>What to use.</b>" in page[first:found]
    assert "gpt-x" not in re.sub(r"<script.*?</script>", "", page[first:found], flags=re.DOTALL)
    assert 'href="https://arxiv.org/abs/2510.19933"' in page


def test_the_dot_is_on_the_claims_side_if_it_is_confirmed(tmp_path: Path) -> None:
    for item in judge(load.load(everything(tmp_path))):
        low, high = item.finding.zone
        if item.verdict == CONFIRMED and not item.finding.count:
            assert low <= item.finding.interval.mean <= high, item.claim.id


def test_costs_are_of_the_seeds_that_a_claim_was_promised(tmp_path: Path) -> None:
    folder = write(tmp_path / "gpt", ladder(dict.fromkeys(LOSSES, 1.0), seeds=6), "study")
    (study,) = load.load(folder).studies
    declared = Decide(family=("lower-loss",), width={"lower-loss": 1e-3}, pilot=(0, 1, 2, 3, 4, 5))
    results = load.Results(folder, (load.replace(study, declared=declared),), load.load(folder).tables)
    (item,) = [j for j in judge(results) if j.claim.id == "lower-loss"]
    lacking = item.finding.required - 6
    assert lacking > 0
    seconds = lacking * sum(sum(run.seconds.values()) for run in results.runs) / 6
    duration = f"{ceil(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
    said = f"{lacking} more seeds by the pilot's spread: about {duration} of one core"
    assert open_costs.costs(results, judge(results))["lower-loss"] == said


def test_runs_that_were_cut_are_said(tmp_path: Path) -> None:
    cases = ladder(seeds=3)
    for case in cases:
        if case.fields["seed"] == 2:
            case.state = "waiting"
    (tmp_path / open_costs.COMMAND).write_text("inexact-muon demo --out here\n")
    write(tmp_path / "gpt", cases, "gpt")
    built = build(tmp_path, pictures=False)
    (sentence,) = built.unfinished
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
    order = ["convergence", "heatmaps", "cnn-loss", "accuracy", "table-1", "lmo-error", "layers", "accuracy-maps"]
    assert [figure.id for figure in drawn][:8] == order
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
        assert panel.rows[-1]["size"] == paper.SIZE
    share = [row["value"] for row in sizes.rows if row["effect"] == "first" and row["runs"] == "gpt"]
    assert share == [pytest.approx((2.0 - 1.6) / (2.0 - 1.51), abs=0.01)]


def test_charts_name_studies_in_words(tmp_path: Path) -> None:
    write(tmp_path / "a", ladder(seeds=3), "gpt-x", "A byte GPT by Polar Express iterations")
    records = [("validation", step, {"loss": 1 / step}) for step in (10, 20)]
    runs = [
        Case({"problem": {"name": "cnn"}, "optimizer": {"name": name}}, records=records) for name in ("muon", "sgd")
    ]
    write(tmp_path / "b", runs, "others-x", "Muon beside others")
    drawn = {figure.id: figure for figure in figures(load.load(tmp_path))}
    places = {row["place"] for row in drawn["sizes"].rows}
    assert any(place.replace("\n", " ").startswith("A byte GPT by Polar Express iterations, ") for place in places)
    assert [panel.title for panel in drawn["baselines"].panels] == ["Muon beside others"]
    assert {row["optimizer"] for row in drawn["baselines"].rows} == {"Muon", "SGD"}
    titles = [panel.title for figure in drawn.values() for panel in figure.panels]
    assert not any(slug in text for text in (*places, *titles) for slug in ("gpt-x", "others-x"))


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


def test_a_caption_is_followed_by_the_remarks_of_own_runs_and_of_reference_evidence(tmp_path: Path) -> None:
    def stores(folder: Path, delta: float, title: str) -> Path:
        write(folder / "ladder", ladder(seeds=2, error=lambda count, step: delta), "ladder")
        write(folder / "heat", grid(bowl({2: (0.05, 0.8), 5: (0.1, 0.8)}, {2: 1.0, 5: 1.0}), 2), "heat", title)
        return folder

    for own_delta, lent_delta in ((0.5, 0.5), (0.5, 1.2), (1.2, 0.5), (1.2, 1.2)):
        own = stores(tmp_path / f"{own_delta} {lent_delta}", own_delta, "Mine")
        stores(own / "reference", lent_delta, "Lent")
        drawn = {figure.id: figure for figure in figures(load.load(own), load.reference(own))}["heatmaps"]
        named = [name for name, delta in (("Mine", own_delta), ("reference: Lent", lent_delta)) if delta > 1]
        assert [remark.split(",")[0] for remark in drawn.remarks] == [f"In {name}" for name in named]
        assert drawn.text == " ".join((drawn.caption, *drawn.remarks))


def test_a_declaration_spells_claims_and_leaves_the_title_alone(tmp_path: Path) -> None:
    declared = Decide(family=("lower-loss", "time"), pilot=(0, 1), width={"lower-loss": 0.1}, most=4)
    (study,) = load.load(write(tmp_path, ladder(seeds=2), title="On lower-loss", decide=declared)).studies
    (line,) = sentences(study)
    assert line.startswith("On lower-loss declares: family lower loss, time; pilot")
    assert "half-widths lower loss 0.1;" in line


def test_a_sentence_has_its_number_on_the_scale_of_its_interval(tmp_path: Path) -> None:
    """The LMO error's fall is a logarithm in the store of seeds, and a ratio in words and in the plot."""
    item = next(item for item in shown(everything(tmp_path)).judged if item.claim.id == "error-ordered")
    value = float(item.finding.statistic.rpartition(": ")[2])
    low, high = map(float, re.findall(r"[\d.]+", interval_text(item))[:2])
    assert low <= value <= high


def test_names_of_oracles_are_words() -> None:
    words = [in_words(name) for name in ("newton-schulz", "cans", "polar-express(degree=9)", "exact-svd", "jordan")]
    assert words == ["Newton-Schulz", "CANS", "Polar Express (degree=9)", "Exact", "Jordan"]


@pytest.mark.parametrize(("state", "drawn"), [("waiting", 0), ("diverged", 2), ("finished", 2)])
def test_a_panel_without_results_is_not_drawn(state: str, drawn: int, tmp_path: Path) -> None:
    cases = grid(bowl({2: (0.05, 0.8), 5: (0.1, 0.8)}, {2: 1.0, 5: 1.0}), 1)
    for case in cases:
        case.state = state
    maps = next(figure for figure in figures(load.load(write(tmp_path, cases))) if figure.id == "heatmaps")
    assert len(maps.panels) == drawn
