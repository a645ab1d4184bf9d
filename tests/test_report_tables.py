"""Tables beside the stores: each fills its section; what cannot be read is a sentence, and the page is there."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

pytest.importorskip("altair", reason="the report needs the extra `lab`")

from inexact_muon_lab.report import sources, tables
from inexact_muon_lab.report.build import TEXT, announce, build
from inexact_muon_lab.report.claims import judge
from inexact_muon_lab.report.load import load
from report_cases import ladder, write
from report_tables import cotuning, every_table, theory, write_tables
from test_report_pages import EVIL, inline_data, read_csv

FIGURES = {"theory.json": "theory", "cotuning.json": "co-tuning"}
ROOT = Path(__file__).parent.parent


def edit(name: str, *path: str | int, value: Any = None) -> Any:
    made = json.loads(json.dumps(every_table()))
    place = made[name]
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return {name: made[name]}


PROBLEM = ("problems", 0)
BROKEN = {
    "not JSON": {"theory.json": "{"},
    "empty": {"cotuning.json": ""},
    "not text": {"theory.json": "\x00\x01"},
    "a list": {"cotuning.json": []},
    "foreign": {"theory.json": {"theorems": 7}},
    "another format": edit("cotuning.json", "format", value="inexact-muon/cotuning/2"),
    "no format": edit("cotuning.json", "format", value=None),
    "a negative step size": edit("cotuning.json", *PROBLEM, "targets", 0, "best", "lr", value=-1.0),
    "a step size that is not finite": edit("cotuning.json", *PROBLEM, "targets", 0, "best", "lr", value=float("inf")),
    "words for numbers": edit("theory.json", "rows", 0, "left", value="small"),
    "a number beyond all floats": {"theory.json": json.dumps(theory()["theory.json"]).replace("0.5", "1" + "0" * 400)},
    "nested without end": {"theory.json": "[" * 100_000},
    "foreign oracles": {"oracles.json": [{"method": "x"}]},
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_what_cannot_be_read_is_one_sentence(case: str, tmp_path: Path) -> None:
    (name,) = BROKEN[case]
    write(tmp_path, ladder(seeds=1))
    write_tables(tmp_path, BROKEN[case])
    built = build(tmp_path, pictures=False)
    (sentence,) = built.problems
    assert sentence.startswith(str(tmp_path / name))
    assert "\n" not in sentence
    console = Console(record=True, file=io.StringIO(), width=200)
    announce(built, console)
    assert console.export_text().count("warning:") == 1
    page, text = built.page.read_text(), (tmp_path / TEXT).read_text()
    assert page.count("is left out") == text.count("is left out") == 1
    assert tables.NAMES[next(n for n in tables.NAMES if Path(name).match(n))] in page


ODD = {
    "no rows": {"theory.json": {"rows": []}},
    "no problems": {"cotuning.json": {"format": "inexact-muon/cotuning/1", "problems": []}},
    "no targets": edit("cotuning.json", *PROBLEM, "targets", value=[]),
    "no means": edit("cotuning.json", *PROBLEM, "rules", value=[]),
    "nothing at all": edit("cotuning.json", *PROBLEM, value={"problem": "x", "source": "", "rules": [], "targets": []}),
    "a rule that diverged": edit("cotuning.json", *PROBLEM, "targets", 0, "rules", 0, "regret", value=float("nan")),
    "one target": cotuning(1) | theory(1),
    "a bound below zero": edit("theory.json", "rows", 0, "ours", value=-1.0),
    "a left side of zero": edit("theory.json", "rows", 0, "left", value=0.0),
}  # fmt: skip


@pytest.mark.parametrize("case", ODD)
def test_odd_tables_give_a_sensible_page(case: str, tmp_path: Path) -> None:
    built = build(write_tables(tmp_path, ODD[case]))
    assert built.problems == []
    page = re.sub(r"<script.*?</script>", "", built.page.read_text(), flags=re.DOTALL).lower()
    assert "nan" not in page
    assert "inf<" not in page


def test_a_section_appears_with_its_table(tmp_path: Path) -> None:
    write(tmp_path, ladder(seeds=1))
    page = build(tmp_path, pictures=False).page.read_text()
    assert all(not inline_data(page)[name] for name in FIGURES.values())
    for text in (sources.THEORY, sources.COTUNING):
        assert f"To make them: <code>{text}</code>" in page
    write_tables(tmp_path / "below" / "deeper", every_table())
    page = build(tmp_path, pictures=False).page.read_text()
    assert all(inline_data(page)[name] for name in FIGURES.values())
    assert "A byte GPT (below/deeper)" in page


def test_tables_alone_are_enough(tmp_path: Path) -> None:
    built = build(write_tables(tmp_path, every_table()))
    assert (tmp_path / "report" / "co-tuning.png").exists()
    assert {j.finding.verdict for j in built.judged if j.claim.on in ("theory", "cotuning")} == {"confirmed"}


def test_a_table_from_elsewhere_says_so(tmp_path: Path) -> None:
    lent = {name: content | {"origin": "somebody else's study"} for name, content in every_table().items()}
    page = build(write_tables(tmp_path, lent), pictures=False).page.read_text()
    assert page.count("(somebody else&#39;s study)") >= 5  # two figures, three claims


def test_the_committed_theory_is_confirmed(tmp_path: Path) -> None:
    (tmp_path / "theory.json").write_bytes((ROOT / "docs" / "figures" / "theory.json").read_bytes())
    (found,) = [j.finding for j in judge(load(tmp_path)) if j.claim.id == "theory"]
    assert found.verdict == "confirmed"
    assert found.interval.n > 600


def test_exports_hold_the_values_of_the_tables(tmp_path: Path) -> None:
    build(write_tables(tmp_path, every_table()), pictures=False)
    bounds = read_csv(tmp_path / "report" / "theory.csv")
    rows = theory()["theory.json"]["rows"]
    assert [(float(b["measured"]), float(b["value"])) for b in bounds] == [(r["left"], r["ours"]) for r in rows]
    dots = [r for r in read_csv(tmp_path / "report" / "co-tuning.csv") if r["kind"] == "target"]
    targets = cotuning()["cotuning.json"]["problems"][0]["targets"]
    assert [float(d["regret"]) for d in dots] == [r["regret"] for t in targets for r in t["rules"]]


def test_names_in_tables_are_escaped(tmp_path: Path) -> None:
    text = json.dumps(EVIL)[1:-1]
    names = (
        "Theorem 1, two numbers",
        "quadratic",
        "A byte GPT",
        "polar-express",
        "measured",
    )
    for name, content in every_table().items():
        hostile = json.dumps(content)
        for word in names:
            hostile = hostile.replace(f'"{word}', f'"{text}')
        (tmp_path / name).write_text(hostile)
    page = build(tmp_path).page.read_text()
    assert page.count("</script>") == 3
    outside = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert "<img" not in outside
    assert "&lt;script&gt;" in page
    assert "<script>" not in (tmp_path / TEXT).read_text()
