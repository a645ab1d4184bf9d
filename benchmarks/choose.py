"""Which oracle should I use: the table of README.md and docs/choose-oracle.md, from committed measurements.

Errors and products are docs/figures/oracles.json, times benchmarks/results/bench.json. Each row is a question with a
condition; the answer is the cheapest oracle that meets it. `python benchmarks/choose.py` writes it into the pages.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
from marks import between

ROOT = Path(__file__).parent.parent
PAGE, SHORT = "docs/choose-oracle.md", "README.md"
"""Pages with the whole table, and with four rows of it."""

FOUR = ("auto:accurate", "polar-express(steps=5)", "jordan(steps=5)", "exact-svd()")
PRODUCTS = ("polar-express", "jordan", "you", "cesista", "newton-schulz")
"""Families that are products only and bear half precision."""

Record = dict[str, Any]


@dataclass(frozen=True)
class Question:
    """A need and the condition on a row of oracles.json; `least` breaks ties of cost."""

    need: str
    meets: Callable[[Record], bool]
    least: Callable[[Record], float] = lambda r: r["delta"]["1e-03"]


def error(r: Record) -> float:
    return r["delta"]["1e-03"]


def products(r: Record) -> bool:
    return r["family"] in PRODUCTS


QUESTIONS = (
    Question("products only (GPUs, half precision), error below 0.15", lambda r: products(r) and error(r) < 0.15),
    Question("the same, error below 0.01", lambda r: products(r) and error(r) < 0.01),
    Question("the same, below float32's rounding", lambda r: products(r) and error(r) < 1e-7),
    Question(
        "the same, never longer than 1",
        lambda r: products(r) and error(r) < 0.15 and max(r["overshoot"].values()) <= 1.0,
    ),
    Question(
        "float32, products only, error below 0.15", lambda r: r["family"] in ("cans", *PRODUCTS) and error(r) < 0.15
    ),
    Question("float32, factorisations are cheap, error below 0.1", lambda r: error(r) < 0.1),
    Question("singular values down to 1e-4 matter", lambda r: r["delta"]["1e-04"] < 0.1),
    Question("what `torch.optim.Muon` runs", lambda r: r["method"] == "jordan(steps=5)"),
    Question("a reference without error", lambda r: r["family"] == "exact-svd"),
)


def answer(question: Question, oracles: list[Record]) -> Record:
    """The cheapest row of oracles.json that meets the question's condition."""
    return min(filter(question.meets, oracles), key=lambda r: (r["square"], question.least(r)))


def table(oracles: list[Record], bench: Record) -> str:
    """The table; a time is of one GPT-2 layer, j^-1, over the two products that no method avoids."""
    times = {r["oracle"]: r for r in bench["oracles"] if r["spectrum"] == "power-law"}
    lines = [
        "| you want | oracle | bound | gap, overshoot | products | time |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for need, text in (
        ("the cheapest for a bound of 0.065, chosen by shape and device; plain `auto`", "auto:accurate"),
        ("the cheapest that was as good as the exact one in some training", "auto:fast"),
    ):
        auto = times[text]
        judged = f"{auto['gap']:.3f}, {auto['overshoot']:.3f}"
        lines.append(f"| {need} | `{text}` | {auto['delta']:.3f} | {judged} | | {auto['time']:.1f} |")
    for question in QUESTIONS:
        r = answer(question, oracles)
        time = f"{times[r['method']]['time']:.1f}" if r["method"] in times else ""
        judged = f"{r['gap']['power-law']:z.3f}, {r['overshoot']['power-law']:.3f}"
        lines.append(
            f"| {question.need} | `{r['method']}` | {_short(error(r))} | {judged} | {r['square']:g} | {time} |"
        )
    return "\n".join(lines) + "\n"


def four(oracles: list[Record], bench: Record) -> str:
    """Four rows of the table: what you want, the oracle, gap and overshoot, time."""
    rows = [line.split(" | ") for line in table(oracles, bench).splitlines()]
    chosen = [row for row in rows[2:] if row[1].strip("`") in FOUR]
    lines = [f"{row[0]} | {row[1]} | {row[3]} | {row[-1].removeprefix('| ')}" for row in (rows[0], *chosen)]
    return "\n".join((lines[0], "|---|---|---:|---:|", *lines[1:])) + "\n"


def written(page: str, made: str) -> str:
    """The page with the table between its marks."""
    return between(page, {"oracles": made}, "python benchmarks/choose.py")


def load() -> tuple[list[Record], Record]:
    """The two committed files."""
    files = ROOT / "docs/figures/oracles.json", ROOT / "benchmarks/results/bench.json"
    oracles, bench = (json.loads(path.read_text()) for path in files)
    return oracles, bench


def _short(x: float) -> str:
    return "0" if x < 1e-12 else f"{x:.3f}" if x >= 1e-3 else f"{x:.0e}"


if __name__ == "__main__":
    for name, made in ((PAGE, table(*load())), (SHORT, four(*load()))):
        path = ROOT / name
        path.write_text(written(path.read_text(), made))
        print(f"written: {name}")
