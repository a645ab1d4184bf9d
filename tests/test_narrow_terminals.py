"""At 80 columns every table shows every value whole; numbers keep their significant digits."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from rich.console import Console

from inexact_muon.sheet import Row, Sheet
from inexact_muon_lab import cli, terminal
from inexact_muon_lab.bench import page
from inexact_muon_lab.cli import demo
from inexact_muon_lab.plan import choice
from inexact_muon_lab.plan.choice import Measured
from inexact_muon_lab.plan.pricing import Cost
from inexact_muon_lab.spec import study
from inexact_muon_lab.store import store
from inexact_muon_lab.store.curves import Curves
from inexact_muon_lab.store.store import Outcome
from inexact_muon_lab.terminal import number
from lab_cases import CNN, SHORT
from pages import ROOT
from test_tune_checkpoints import stepped

WIDTH = 80


RATES = (0.0009765625, 1e-5, 0.05)
LOSSES = (2.303612, 2.303598, 1.2e-5)


def fill(folder: Path) -> study.StudyRuns:
    """A store of three runs that differ little."""
    base = {**SHORT, "problem": CNN, "optimizer": {"name": "muon", "polar": "polar-express:5"}}
    grid = [{"optimizer": {"lr": list(RATES), "polar": ["polar-express(steps=5, normalise=frobenius)"]}}]
    plan = study.plan(study.Study(name="some", title="Some runs", base=base, grid=grid), "some.toml")
    opened = store.Store(folder, plan)
    for spec, loss in zip(plan.runs, LOSSES, strict=True):
        opened.begin(spec.id)
        opened.run_folder(spec.id).mkdir()
        curves = Curves(opened.run_folder(spec.id) / store.CURVES)
        for step in range(1, 13):
            curves.append("train", step, {"loss": loss + 1 / step})
        result = {"train_loss": loss, "loss": loss, "accuracy": 0.1, "lmo_error": 11.94, "oracle_flops": 10**12}
        opened.end(
            spec.id,
            Outcome(state="finished", step=12, result=result, seconds={"optimizer": 0.0042}, curves=curves.mark),
        )
    opened.close()
    return plan


def run_list(folder: Path) -> None:
    fill(folder)
    cli.COMMANDS["list"](folder)


def run_checkpoint(folder: Path) -> None:
    torch.save(stepped("ours")[1].state_dict(), folder / "c.pt")
    cli.COMMANDS["delta"](checkpoint=folder / "c.pt")


def run_bench(folder: Path) -> None:
    page.show(json.loads((ROOT / "benchmarks/results/bench.json").read_text()), terminal.console(190))


def run_plan(folder: Path) -> None:
    """A plan with the large numbers of many ranks; recording them takes minutes, so that they are made up."""
    cost = Cost(123_456, 78, 1.23456e12, 9.87654e11, 1.2345e18, 8.7654e11, 6.54321e11, 123.456, 98.7654)
    with pytest.MonkeyPatch.context() as patch:
        recorded = Measured(cost, 987_654_321_012, 560, 68_000_000_000)
        patch.setattr(choice, "measure_all", lambda cases, machine: ((name, recorded) for name in cases))
        cli.COMMANDS["plan"]("llama3-70b", gpus=1024, tp=8)


COMMANDS: dict[str, Callable[[Path], None]] = {
    "plan": run_plan,
    "theory list": lambda _: cli.COMMANDS["theory"]("list"),
    "theory NAME": lambda _: cli.COMMANDS["theory"]("measured-varying-bound", set=("gaps=[0.1,0.2]", "L=1.23456")),
    "delta": lambda _: cli.COMMANDS["delta"]("polar-express(steps=5, lower=0.001)", spectrum="gpt-late"),
    "delta --checkpoint": run_checkpoint,
    "transfer": lambda _: cli.COMMANDS["transfer"](0.05, 0.95, "polar-express:5", "zolotarev(poles=4, lower=0.0001)"),
    "demo --oracles": lambda folder: demo.show_oracles(folder, terminal.console(190)),
    "bench": run_bench,
    "list": run_list,
}
"""Every command that prints a table."""


@pytest.mark.parametrize("command", COMMANDS)
def test_every_value_is_whole(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed: list[Sheet] = []
    draw = Sheet.print
    monkeypatch.setattr(Sheet, "print", lambda sheet, to: (printed.append(sheet), draw(sheet, to)))
    monkeypatch.setattr(demo, "save_oracles", lambda *_: demo.catalogue.rows())
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    COMMANDS[command](tmp_path)
    out = capsys.readouterr().out
    assert printed
    assert "…" not in out
    assert all(len(line) <= WIDTH for line in out.splitlines() if line[:1] in ("┃", "│", "┏", " "))
    for sheet in printed:
        for title in sheet.columns[sheet.keys :]:
            assert all(word in out for word in title.split())
        for row in sheet.rows:
            for title, cell in zip(sheet.columns, row.cells, strict=True):
                parts = str(cell).split() if title in sheet.prose else [str(cell)]
                assert all(part in out for part in parts), (title, cell)


def test_a_run_at_80_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = fill(tmp_path)
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    for spec, rate, loss in zip(plan.runs, RATES, LOSSES, strict=True):
        cli.COMMANDS["show"](tmp_path, spec.id)
        out = capsys.readouterr().out
        for part in (f"lr={rate:.10g}", number(loss), number(loss + 1), "0.0042", "11.9400", "1e+12"):
            assert part in out
        (curve,) = [line for line in out.splitlines() if line.startswith("train loss")]
        assert len(curve) <= WIDTH


def test_runs_can_be_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    cli.COMMANDS["list"](tmp_path)
    lines = [line.split("│") for line in capsys.readouterr().out.splitlines() if "finished" in line and "│" in line]
    assert [line[3].strip() for line in lines] == ["0.0009765625", "1e-05", "0.05"]
    assert [line[6].strip() for line in lines] == ["2.30361", "2.30360", "1.2e-05"]


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (2.303612, 6, "2.30361"),
        (1.2, 6, "1.20000"),
        (1.25e-5, 6, "1.25e-05"),
        (0.0042, 3, "0.00420"),
        (1234.5, 3, "1.23e+03"),
        (123.4, 3, "123"),
        (0.0, 3, "0.00"),
        (10**12, 6, "1000000000000"),
        (None, 6, "-"),
        (float("inf"), 6, "inf"),
    ],
)
def test_numbers(value: float | None, digits: int, text: str) -> None:
    assert number(value, digits) == text


NAMES = tuple(f"column {k}" for k in range(8))
ROWS = [Row([f"row-{i}", *(f"{i}{k}" * 6 for k in range(1, 8))]) for i in range(3)]


def drawn(sheet: Sheet, width: int) -> str:
    stream = io.StringIO()
    sheet.print(Console(file=stream, width=width))
    return stream.getvalue()


def test_wide_enough_is_one_grid() -> None:
    assert drawn(Sheet("title", NAMES, ROWS), 200).count("┏") == 1


def test_too_narrow_is_written_in_blocks() -> None:
    out = drawn(Sheet("title", NAMES, ROWS), 30)
    assert "┏" not in out
    assert out.count("row-0") == 1
    assert "column 3: 131313131313" in out
    assert all(len(line) <= 30 for line in out.splitlines())


def test_optional_columns_go_first_and_this_is_said() -> None:
    sheet = Sheet("title", NAMES, ROWS, optional=("column 6", "column 2"))
    out = drawn(sheet, 110)
    assert out.count("┏") == 1
    assert "Left out at this width: column 6." in out
    assert "Left out at this width: column 6, column 2." in drawn(sheet, 95)
    assert "Left out" not in drawn(sheet, 200)


def test_empty_columns_go_without_a_word() -> None:
    rows = [Row(["a", "", "b" * 20]), Row(["c", "", "d" * 20])]
    out = drawn(Sheet("", ("key", "nothing-in-here", "value"), rows), 40)
    assert "nothing-in-here" not in out
    assert "b" * 20 in out


def test_only_prose_is_wrapped() -> None:
    words = "one two three four five six seven eight nine ten"
    sheet = Sheet("", ("key", "text", "name"), [Row(["k", words, "a b c d e f g h"])], prose=("text",))
    out = drawn(sheet, 60)
    assert words not in out
    assert "a b c d e f g h" in out


def test_markup_is_text() -> None:
    assert "layers[0].weight" in drawn(Sheet("[t]", ("key", "b"), [Row(["layers[0].weight", "[bold]x[/bold]"])]), 80)
