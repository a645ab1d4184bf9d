"""Output of `inexact-muon delta` and `inexact-muon transfer`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.text import Text

from inexact_muon.inexactness import Inexactness, predict
from inexact_muon.polar import PolarMethod, parse
from inexact_muon.schedules.prices import CPU
from inexact_muon.terminal import Row, Sheet
from inexact_muon.terminal import console as open_console
from inexact_muon.tune import carry, checkpoints, rules, spectra

NUMBERS = ("delta", "gap", "overshoot", "factor", "stochastic factor")

LEFT = (
    *("on", "layer", "shape", "oracle", "oracle in use", "rule", "from", "why", "which is, for the shape"),
    *("gamma_B/gamma_A", "alpha_B/alpha_A"),
)
"""Text columns."""
PROSE = ("why", "from")
"""Columns that may be wrapped."""
WIDTH = 220
"""Width if the output is not a terminal."""


def delta(oracle: str | None, shape: str, spectrum: str, checkpoint: Path | None, as_json: bool = False) -> None:
    """Predicted inexactness of an oracle on a spectrum, or on the momentum in a checkpoint."""
    method = parse(oracle) if oracle is not None else None
    if checkpoint is not None and as_json:
        saved = checkpoints.read(checkpoint)
        _print_json([_record(spectra.spectrum_of(m.name, m.matrix), method or m.oracle) for m in saved])
        return
    if checkpoint is not None:
        _checkpoint(method, checkpoint)
        return
    if method is None:
        raise ValueError("name an oracle, such as polar-express:5, or a file with --checkpoint")
    n, m = read_shape(shape)
    method = method.at(n, m)
    name, layers = spectra.resolve(spectrum, side=min(n, m))
    if as_json:
        _print_json([_record(layer, method) for layer in layers])
        return
    console = open_console(WIDTH)
    names = [f"{layer.name}, {layer.shape[0]} x {layer.shape[1]}" for layer in layers] if len(layers) > 1 else [name]
    rows = [Row([on, *_cells(predict(method, one.values))]) for on, one in zip(names, layers, strict=True)]
    if len(layers) > 1:
        rows.append(Row(["together", *_cells(spectra.judge_layers(method, layers))], "bold"))
    _print(console, f"{method}, normaliser {method.normaliser}", ("on", *NUMBERS), rows)
    lower = method.map.lower or 1e-3
    console.print(f"error bound at lower {lower:g}: {method.error_bound(lower):.4g}")
    console.print(f"cost for {n} x {m}: {method.flops(n, m):.4g} floating point operations")


def transfer(lr: float, momentum: float, source: str, target: str, rule: str, spectrum: str | None) -> None:
    """The four rules compared, the chosen one marked, with the reason."""
    made = {name: carry.transfer(lr, momentum, source, target, name, spectrum) for name in rules.RULES}
    taken, console = made[rules.find(rule).name], open_console(WIDTH)
    ends = (("from", source, taken.source), ("to", target, taken.target))
    judged = [Row([f"{role} {parse(text)}", *_cells(found)]) for role, text, found in ends]
    _print(console, f"judged on {taken.spectrum}", ("oracle", *NUMBERS), judged)
    titles = ("rule", "lr", "momentum (PyTorch)", "alpha = 1 - momentum", "lr factor", "alpha factor")
    formulas = ("gamma_B/gamma_A", "alpha_B/alpha_A", "from")
    rows = []
    for name, carried in made.items():
        row = rules.RULES[name]
        values = (carried.lr, carried.momentum, carried.alpha, carried.lr_factor, carried.alpha_factor)
        cells = [f"{value:.4g}" for value in values]
        cells[2] += " (cut to 1)" if carried.clipped else ""
        mark, style = ("-> ", "bold") if carried is taken else ("", "")
        rows.append(Row([f"{mark}{name}", *cells, row.lr, row.alpha, row.source], style))
    title = f"lr {lr:g}, momentum {momentum:g}, alpha {1.0 - momentum:.4g}, carried"
    _print(console, title, (*titles, *formulas), rows)
    console.print(taken.why, soft_wrap=True)
    console.print(
        "In training descent came closer to the best lr than keeping it, no other rule did (docs/which-oracle.md).",
        soft_wrap=True,
    )


def _checkpoint(method: PolarMethod | None, path: Path) -> None:
    """All momentum matrices under the oracle in use and the candidates, the bottleneck and the advice."""
    console, found = open_console(WIDTH), checkpoints.read(path)
    steps = track(found, description="decomposing", console=console, disable=not console.is_terminal)
    reports = [checkpoints.examine(momentum, method) for momentum in steps]
    _print_in_use(console, path, reports)
    _print_candidates(console, reports)
    _print_advice(console, reports)


def _print_in_use(console: Console, path: Path, reports: Sequence[checkpoints.LayerReport]) -> None:
    rows = []
    for r in reports:
        values, (n, m) = r.layer.values, r.layer.shape
        numbers = _cells(r.in_use) if r.in_use is not None else [""] * len(NUMBERS)
        ratio = f"{values[0] / values[-1]:.1e}"
        rows.append(Row([r.layer.name, f"{n} x {m}", ratio, str(r.oracle or "not in the file"), *numbers]))
    titles = ("layer", "shape", "sigma_1/sigma_r", "oracle in use", *NUMBERS)
    _print(console, f"momentum in {path}", titles, rows)
    if all(r.in_use is None for r in reports):
        console.print("The file does not name its oracle: inexact-muon delta ORACLE --checkpoint FILE judges one.")
    used = [(r.layer.name, r.in_use) for r in reports if r.in_use is not None]
    oracle = "the oracle in use" if used else str(checkpoints.CANDIDATES[4])
    used = used or [(r.layer.name, r.candidates[4]) for r in reports]
    worst, squared = checkpoints.bottleneck([i for _, i in used])
    bottleneck = (
        f"Bottleneck under {oracle}: layer {used[worst][0]}, factor {squared**0.5:.4f}: with layer-wise steps it alone "
        f"multiplies the number of iterations by {squared:.4f} (measured-layerwise-iterations)."
    )
    console.print(Text(bottleneck), soft_wrap=True)  # a name may contain markup


def _print_candidates(console: Console, reports: Sequence[checkpoints.LayerReport]) -> None:
    title = "stochastic factor of candidates: pe:5 is polar-express:5"
    heads = [f"{'pe' if m.name == 'polar-express' else m.name}:{m.steps}" for m in checkpoints.CANDIDATES]
    rows = []
    for r in reports:
        best, judged = r.cheapest
        cells = [f"{i.stochastic_factor:.3f}" for i in (*r.candidates, judged)]
        rows.append(Row([r.layer.name, *cells, str(best)]))
    columns = zip(*((*r.candidates, r.cheapest[1]) for r in reports), strict=True)
    worst = [checkpoints.bottleneck(column) for column in columns]
    methods = [(*checkpoints.CANDIDATES, r.cheapest[0]) for r in reports]
    flops = [
        sum(row[k].flops(*r.layer.shape) for row, r in zip(methods, reports, strict=True)) for k in range(len(worst))
    ]
    rows.append(Row(["worst-layer factor", *(f"{squared**0.5:.3f}" for _, squared in worst), ""]))
    rows.append(Row(["flops of all", *(f"{f:.1e}" for f in flops), ""]))
    _print(console, title, ("layer", *heads, "cheapest", "which is, for the shape"), rows, closing=2)


def _print_advice(console: Console, reports: Sequence[checkpoints.LayerReport]) -> None:
    titles = ("layer", "oracle", "why", "cost", "cost in use", "flops", "flops in use")
    rows, totals = [], [0, 0]
    for r in reports:
        row = [r.layer.name, "none is good enough", "", ""]
        if r.advice is not None:
            row[1:] = [str(r.advice.method), r.advice.why, f"{r.advice.cost:.3g}"]
        used = "" if r.oracle is None else f"{CPU.of(r.oracle, *r.layer.shape):.3g}"
        methods = (r.advice.method if r.advice is not None else None, r.oracle)
        flops = [0 if method is None else method.flops(*r.layer.shape) for method in methods]
        totals = [total + f for total, f in zip(totals, flops, strict=True)]
        rows.append(Row([*row, used, *(f"{f:.3g}" if f else "" for f in flops)]))
    rows.append(Row(["together", "", "", "", "", *(f"{f:.3g}" if f else "" for f in totals)], "bold"))
    title = "recommended: the cheapest on a CPU whose gap and overshoot are small on this spectrum"
    _print(console, f"{title}; cost in n x n x n products", titles, rows, closing=1)
    if all(r.kept for r in reports):
        console.print(
            "Keep what you use: it is good enough, and the one that is cheapest on a CPU takes more time or more flops."
        )


def read_shape(text: str) -> tuple[int, int]:
    """ "768x3072" -> (768, 3072)."""
    found = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text)
    if not found:
        raise ValueError(f"shape must look like 768x3072, got {text!r}")
    return int(found[1]), int(found[2])


def _record(layer: spectra.Layer, method: PolarMethod | None) -> dict[str, Any]:
    """A layer as plain data; without the three numbers if its oracle is not known."""
    record: dict[str, Any] = {"name": layer.name, "shape": layer.shape}
    if method is not None:
        used = method.at(*layer.shape)
        judged = predict(used, layer.values)
        record |= {"oracle": str(used), "delta": judged.delta, "gap": judged.gap, "overshoot": judged.overshoot}
    return record | {"singular_values": layer.values.tolist()}


def _print_json(layers: Sequence[dict[str, Any]]) -> None:
    open_console(WIDTH).file.write(json.dumps({"layers": layers}) + "\n")


def _print(console: Console, title: str, columns: tuple[str, ...], rows: Sequence[Row], closing: int = 0) -> None:
    Sheet(title, columns, rows, left=LEFT, prose=PROSE, closing=closing).print(console)


def _cells(i: Inexactness) -> list[str]:
    return [f"{x:.4f}" for x in (i.delta, i.gap, i.overshoot, i.factor, i.stochastic_factor)]
