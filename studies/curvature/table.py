"""Curvature along singular directions: tables, picture and page from what measure.py measured and from packed runs.

`python studies/curvature/table.py --out docs/figures --page docs/curvature.md` reads measured.json and the packs that
declared.toml names, writes curvature.json, .md and .svg, and puts tables between the marks of the page.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
sys.path.insert(0, str(Path(__file__).parent))
import best_power
import exponents
from marks import between, page_file
from picture import figure

HERE = Path(__file__).parent
MODELS = {"gpt": "byte GPT, 2 layers", "cnn": "conv net, digits"}
COMMAND = "python studies/curvature/table.py"
ON_PAGE = ("predicted", "losses", "by layer", "cost")
"""Parts of the page; curvature.md has the others, too."""
Row = dict[str, Any]


def made() -> dict[str, Any]:
    """What curvature.json holds."""
    measured = json.loads((HERE / "measured.json").read_text())
    sources = best_power.sources(HERE / "declared.toml")
    trained = [
        {"model": one.model, "batch": one.batch, "study": one.study, "says": one.says}
        | {"best": None if (found := best_power.of(one, HERE)) is None else asdict(found)}
        for one in sources
    ]
    table = {"seconds": measured["seconds"], "rows": [asdict(row) for row in exponents.rows(measured)], "runs": trained}
    return json.loads(json.dumps(table))


def span(value: Row | None, digits: int = 2) -> str:
    """A value with its interval over seeds."""
    if value is None:
        return "none"
    mean, ends = f"{value['mean']:.{digits}f}", value["seeds"]
    return mean if ends is None else f"{mean} ({ends[0]:.{digits}f} to {ends[1]:.{digits}f})"


def ends(value: Row) -> str:
    """The interval over directions."""
    return f"{value['directions'][0]:.2f} to {value['directions'][1]:.2f}"


def direct(row: Row) -> str:
    """The power measured directly, and for how many seeds it is an end of what was tried."""
    return span(row["direct"]) + (f", {row['at_end']} of {row['n']} at an end" if row["at_end"] else "")


def setting(row: Row) -> str:
    """Model, batch and input."""
    return f"{MODELS[row['model']]}, batch {row['batch']}, {row['input']}"


def fitted(rows: list[Row]) -> str:
    """One line a row."""
    lines = [
        "| input of the oracle | layers | step | q | r | p* = r - q | over directions | best p, measured | diagonal |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        cells = [setting(row), row["kind"], row["step"], span(row["q"]), span(row["r"]), span(row["best"])]
        cells += [ends(row["best"]), direct(row), f"{row['diagonal']['mean']:.2f}"]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def pooled(table: Row, one: Row, kind: str) -> Row | None:
    """The row of a model and batch over all points and layers, for an input."""
    wanted = (one["model"], one["batch"], kind, "all", "all")
    found = [r for r in table["rows"] if tuple(r[k] for k in ("model", "batch", "input", "kind", "step")) == wanted]
    return found[0] if found else None


def predicted(table: Row) -> str:
    """What one step says against what whole runs say."""
    lines = [
        "| runs | p*, momentum | best p for a step of all layers, momentum | p*, gradient | the same, gradient "
        "| best p over whole runs | not told from it | seeds |",
        "|---|---:|---:|---:|---:|---:|---|---:|",
    ]
    for one in table["runs"]:
        name = f"{MODELS[one['model']]}, batch {one['batch']} (`{one['study']}`{'; ' * bool(one['says'])}{one['says']})"
        cells = [name]
        for kind in ("momentum", "gradient"):
            row = pooled(table, one, kind)
            cells += ["", ""] if row is None else [span(row["best"]), direct(row)]
        cells += whole(one["best"])
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def whole(found: Row | None) -> list[str]:
    """Best power over runs, those that are not told from it, and seeds."""
    if found is None:
        return ["to come", "", ""]
    lowest = f"{found['best']:g}" + (", an end of what was tried" if found["at_end"] else "")
    others = [p for p in found["alike"] if p != found["best"]]
    return [lowest, ", ".join(f"{p:g}" for p in others) or "none", str(found["seeds"])]


def losses(table: Row) -> str:
    """Loss by power of each study."""
    lines = ["| runs | loss by power, each at its best rates | lr at an end of its grid for |", "|---|---|---|"]
    for one in table["runs"]:
        if one["best"]:
            means = ", ".join(f"{p}: {loss:.4f}" for p, loss in one["best"]["losses"].items())
            edges = ", ".join(f"{p:g}" for p in one["best"]["rate_at_end"]) or "none"
            lines.append(f"| `{one['study']}`, batch {one['batch']} | {means} | {edges} |")
    return "\n".join(lines) + "\n"


def parts(table: Row) -> dict[str, str]:
    """The tables by name."""
    rows = table["rows"]
    minutes = sum(table["seconds"].values()) / 60
    return {
        "predicted": predicted(table),
        "by layer": fitted([row for row in rows if row["step"] == "all"]),
        "by step": fitted([row for row in rows if row["step"] != "all"]),
        "losses": losses(table),
        "cost": f"Measured in {minutes:.0f} minutes of one core.\n",
    }


def markdown(table: Row) -> str:
    """curvature.md: every table."""
    body = "\n".join(f"## {name.capitalize()}\n\n{text}" for name, text in parts(table).items())
    return f"# Curvature along singular directions\n\n`{COMMAND}`; [what it means](../curvature.md).\n\n{body}"


def written(page: str, table: Row) -> str:
    """The page with its parts between their marks."""
    every = parts(table)
    return between(page, {name: every[name] for name in ON_PAGE}, COMMAND)


def main() -> None:
    """The command."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--page", type=page_file)
    given = parser.parse_args()
    table = made()
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "curvature.json").write_text(json.dumps(table, indent=1) + "\n")
    (given.out / "curvature.md").write_text(markdown(table))
    figure(table, MODELS).save(str(given.out / "curvature.svg"))
    if given.page:
        given.page.write_text(written(given.page.read_text(), table))


if __name__ == "__main__":
    main()
