"""Study D, which oracle is enough: every oracle that a user could take in every kind of run, and which of them pass."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from compare import BETTER, ENOUGH, WORSE, Row
from grids import Grid, Setting

KINDS = (
    *(f"{layers} layers, {text}" for layers in (2, 4) for text in ("Python's library", "enwik8")),
    "conv net, CIFAR-10",
)
TIMES = Path(__file__).parent / "times.json"
FEWEST_KINDS = 3
"""Kinds of runs in which an oracle must be as good as the reference, two sizes and two texts among them."""


@dataclass(frozen=True)
class Verdicts:
    """What is known of one oracle.

    Attributes:
        cells: kind of run -> its row in the study with the most seeds, and whether that row is the reference.
        every: its verdicts in all studies.
    """

    oracle: str
    cells: dict[str, Row]
    every: tuple[str, ...]

    @property
    def passes(self) -> bool:
        """As good as the reference in FEWEST_KINDS kinds or more, and worse in no study."""
        return len(self.good) >= FEWEST_KINDS and WORSE not in self.every

    @property
    def good(self) -> list[Row]:
        """Where it is as good as the reference."""
        return [row for row in self.cells.values() if row.verdict in (BETTER, ENOUGH, "reference")]

    @property
    def flops(self) -> float | None:
        """Over those of five Polar Express steps, of the largest model that it was tried on."""
        return next((row.flops for row in reversed(self.cells.values()) if row.flops is not None), None)

    @property
    def word(self) -> str:
        """What the last column says."""
        if self.passes:
            return "yes"
        return "no" if WORSE in self.every else f"in {len(self.good)} of {FEWEST_KINDS} kinds"


def verdicts(settings: Iterable[Setting], found: Mapping[str, list[Row]], grids: Mapping[str, Grid]) -> list[Verdicts]:
    """Of every oracle but the maps of one property, those that pass first, then by flops."""
    by_oracle: dict[str, dict[str, list[Row]]] = {}
    for setting in settings:
        kind = grids[setting.study].kind
        for row in found[setting.study] if kind in KINDS else ():
            if row.verdict and not row.oracle.startswith("shaped"):
                by_oracle.setdefault(plain(row.oracle), {}).setdefault(kind, []).append(row)
    made = [
        Verdicts(
            oracle,
            {
                kind: max(by_kind[kind], key=lambda row: (row.verdict != "reference", row.seeds))
                for kind in KINDS
                if kind in by_kind
            },
            tuple(row.verdict for some in by_kind.values() for row in some),
        )
        for oracle, by_kind in by_oracle.items()
    ]
    return sorted(made, key=lambda one: (not one.passes, one.flops or 0.0, one.oracle))


def plain(oracle: str) -> str:
    """The text without the normaliser, which the paper's studies name."""
    return oracle.replace(", normalise=frobenius", "")


def matrix(made: Iterable[Verdicts]) -> str:
    """Oracle x kind of run."""
    times = json.loads(TIMES.read_text())["times"]
    lines = [
        f"| oracle | flops | time | {' | '.join(KINDS)} | enough |",
        "|---|---:|---:|" + "---:|" * len(KINDS) + "---|",
    ]
    for one in made:
        cells = [f"{_text(one.cells[kind])}" if kind in one.cells else "" for kind in KINDS]
        flops = "" if one.flops is None else f"{one.flops:.2f}"
        time = f"{times[one.oracle][1]:.2f}" if one.oracle in times else ""
        lines.append(f"| {' | '.join([f'`{one.oracle}`', flops, time, *cells, one.word])} |")
    return "\n".join(lines) + "\n"


def _text(row: Row) -> str:
    return "reference" if row.verdict == "reference" else f"{row.own} {row.verdict}, {row.seeds} seeds"
