"""What the four rules say on the shipped spectra, and what steps and `lower` do there: tables and a picture.

`python studies/cotuning_tables.py --out docs/figures` writes cotuning.md, .svg and .png. Nothing is trained.
"""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from inexact_muon import polar, predict, transfer
from inexact_muon_lab.tune import spectra
from inexact_muon_lab.tune.rules import RULES

SOURCE = "polar-express:5"
TARGETS = (
    *(f"polar-express:{steps}" for steps in (1, 2, 3, 8)),
    *("jordan:5", "zolotarev:1", "zolotarev:2", "newton-schulz:5"),
)
SPECTRA = ("gpt-early", "gpt-late", "cnn-late", "gaussian", "power-law")
STAGES = ("gpt-early", "gpt-mid", "gpt-late", "cnn-early", "cnn-mid", "cnn-late")
LOWERS = (0.1, 0.03, 0.01, 0.003, 0.001)


def carried() -> list[dict[str, Any]]:
    """lr and alpha factors of every rule, target and spectrum."""
    rows = []
    for target in TARGETS:
        for spectrum in SPECTRA:
            for rule in RULES:
                found = transfer(1.0, 0.95, SOURCE, target, rule, spectrum)
                factors = {"lr factor": found.lr_factor, "alpha factor": found.alpha_factor}
                rows.append({"target": target, "spectrum": spectrum, "rule": rule, **factors})
    return rows


def worst_factors(stage: str) -> dict[tuple[int, float], float]:
    """(steps, lower) -> the largest stochastic factor of a layer."""
    layers = spectra.resolve(stage)[1]
    found = {}
    for steps in range(1, 7):
        for lower in LOWERS:
            method = polar.PolarExpress(steps, lower=lower)
            found[steps, lower] = max(float(predict(method, layer.values).stochastic_factor) for layer in layers)
    return found


def markdown() -> str:
    """Both tables."""
    lines = [f"lr factor from `{SOURCE}` by rule: {', '.join(RULES)}", ""]
    lines += _row("to", *SPECTRA) + _row("---", *(["---"] * len(SPECTRA)))
    rows = carried()
    for target in TARGETS:
        cells = []
        for spectrum in SPECTRA:
            here = [r for r in rows if (r["target"], r["spectrum"]) == (target, spectrum)]
            cells.append(" ".join(f"{r['lr factor']:.2f}" for r in here))
        lines += _row(f"`{target}`", *cells)
    for stage in ("gpt-early", "gpt-late"):
        worst = worst_factors(stage)
        lines += ["", f"Largest stochastic factor of a layer, {stage}: Polar Express by steps and `lower`", ""]
        lines += _row("steps", *(f"{lower:g}" for lower in LOWERS)) + _row("---", *(["---:"] * len(LOWERS)))
        for steps in range(1, 7):
            lines += _row(str(steps), *(f"{worst[steps, lower]:.3f}" for lower in LOWERS))
    return "\n".join(lines) + "\n"


def figure() -> Any:
    """Recorded spectra, and what each rule makes of them."""
    import altair as alt

    points = [
        {
            "stage": stage,
            "layer": layer.name,
            "share": (j + 0.5) / layer.values.size,
            "sigma": float(s / layer.values[0]),
        }
        for stage in STAGES
        for layer in spectra.resolve(stage)[1]
        for j, s in enumerate(layer.values)
    ]
    shapes = alt.Chart(alt.Data(values=points), title="recorded momentum: sigma_j / sigma_1").mark_line(opacity=0.5)
    shapes = shapes.encode(
        x=alt.X("share:Q", title="j / rank"),
        y=alt.Y(
            "sigma:Q",
            scale=alt.Scale(type="log", domain=[1e-6, 1], clamp=True),
            axis=alt.Axis(format=".0e"),
            title=None,
        ),
        color=alt.Color("stage:N", sort=STAGES, title="spectrum"),
        detail="layer:N",
    ).properties(width=380, height=300)
    real = [r for r in carried() if r["spectrum"] in ("gpt-early", "gpt-late", "cnn-late")]
    carry = alt.Chart(alt.Data(values=real)).mark_point(filled=True, size=60)
    carry = carry.encode(
        x=alt.X("lr factor:Q", scale=alt.Scale(domain=[0.5, 2.0])),
        y=alt.Y("target:N", sort=TARGETS, title=None),
        color=alt.Color("rule:N", sort=list(RULES), scale=alt.Scale(scheme="dark2")),
        shape=alt.Shape("spectrum:N", title="judged on"),
    ).properties(width=380, height=300, title=f"lr factor from {SOURCE}")
    return alt.hconcat(shapes, carry).resolve_scale(color="independent", shape="independent")


def _row(*cells: str) -> list[str]:
    return ["| " + " | ".join(cells) + " |"]


def main() -> None:
    """Writes the tables and the picture."""
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("docs/figures"))
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    (out / "cotuning.md").write_text(markdown())
    chart = figure()
    chart.save(str(out / "cotuning.svg"))
    chart.save(str(out / "cotuning.png"), scale_factor=1.5)


if __name__ == "__main__":
    main()
