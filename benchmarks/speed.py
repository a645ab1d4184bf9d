"""The table of measured steps of docs/peers.md, from bench.json; `python benchmarks/speed.py` writes it.

`over_torch` is what README.md says of it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
from marks import between

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/peers.md"
SETS = ("18 small matrices", "24 of width 256", "GPT-2 layer")
FAST = "auto:fast"


SHOWN = ("Muon.for_model(polar=auto:fast)", "Muon.for_model(polar=auto:accurate)")
"""Our rows, beside those of other packages; the rest is in bench.md."""


def measured(bench: dict[str, Any]) -> list[str]:
    """Time of a step over ours with `auto:fast`, and the accuracy of the largest set."""
    rows = {(r["set"], r["optimizer"]): r for r in bench["steps"]}
    lines = [
        f"| measured on a CPU: step over `{FAST}` | {' | '.join(SETS)} | gap, overshoot, smallest |",
        "|---|---:|---:|---:|---|",
    ]
    names = dict.fromkeys(name for _, name in rows)
    for name in (name for name in names if name in SHOWN or name.endswith("Muon, in float32")):
        found = [rows.get((part, name)) for part in SETS]
        times = [f"{r[FAST]['time']:.2f}" if r else "-" for r in found]
        last = next(r for r in reversed(found) if r)
        judged = f"{last['gap']:+.3f}, {last['overshoot']:.3f}, {last['smallest']:.3f}"
        lines.append(f"| {name} | {' | '.join(times)} | {judged} |")
    return lines


def load() -> dict[str, Any]:
    """The committed measurements."""
    return json.loads((ROOT / "benchmarks/results/bench.json").read_text())


def tables() -> str:
    """The table, from the committed file."""
    return "\n".join(measured(load())) + "\n"


def over_torch(bench: dict[str, Any]) -> tuple[float, float]:
    """Least and most time of a step with `auto:accurate` over that of torch.optim.Muon in float32."""
    rows = {(r["set"], r["optimizer"]): r[FAST]["time"] for r in bench["steps"]}
    ratios = [rows[part, SHOWN[1]] / rows[part, "torch.optim.Muon, in float32"] for part in SETS]
    return min(ratios), max(ratios)


def written(page: str, made: str) -> str:
    """The page with the table between its marks."""
    return between(page, {"speed": made}, "python benchmarks/speed.py")


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(), tables()))
    print("written: docs/peers.md")
