"""README.md's part on speed: a table of measured steps from bench.json, a sentence of modelled ones from modelled.md.

`python benchmarks/speed.py` writes both between their marks.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
from marks import between

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "README.md"
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


def modelled(page: str) -> str:
    """Milliseconds of a step on an H100 by a model."""
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| \d+ \| ([\d.]+) \| ([\d.]+) \|$", page, flags=re.MULTILINE)
    models = list(dict.fromkeys(model for model, *_ in rows))
    parts = []
    for name in dict.fromkeys(name for _, name, *_ in rows):
        found = (next(ms for m, n, ms, _ in rows if (m, n) == (model, name)) for model in models)
        parts.append(f"{name}: {' and '.join(found)}")
    head = "**Modelled** for an H100, not timed (`benchmarks/results/modelled.md`), ms of a step of "
    return f"{head}{' and '.join(models)}: {'; '.join(parts)}."


def tables() -> str:
    """Both, from the committed files."""
    results = ROOT / "benchmarks/results"
    bench = json.loads((results / "bench.json").read_text())
    page = (results / "modelled.md").read_text()
    return "\n".join([*measured(bench), "", modelled(page)]) + "\n"


def written(page: str, made: str) -> str:
    """The page with the tables between their marks."""
    return between(page, {"speed": made}, "python benchmarks/speed.py")


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(), tables()))
    print("written: README.md")
