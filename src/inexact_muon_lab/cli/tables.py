"""Output of `inexact-muon delta` and `inexact-muon transfer`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.text import Text

from inexact_muon.inexactness import Inexactness, worst
from inexact_muon.polar import PolarMethod, parse
from inexact_muon.sheet import Row, Sheet
from inexact_muon_lab.checkpoints import momenta
from inexact_muon_lab.extras import check_picture
from inexact_muon_lab.terminal import console as open_console
from inexact_muon_lab.terminal import write_json
from inexact_muon_lab.tune import advice, carry, plotting, rules, spectra

NUMBERS = ("gap", "overshoot", "lifted", "delta")

LEFT = (
    *("on", "layers", "shape", "oracle", "oracle in use", "exact enough in", "rule", "from"),
    *("gamma_B/gamma_A", "alpha_B/alpha_A"),
)
"""Text columns."""
PROSE = ("from",)
"""Columns that may be wrapped."""
WIDTH = 220
"""Width if the output is not a terminal."""


def delta(
    oracle: str | None, shape: str, spectrum: str, checkpoint: Path | None, json: bool = False, plot: Path | None = None
) -> None:
    """Predicted inexactness of an oracle on a spectrum, or on the momentum in a checkpoint."""
    method = parse(oracle) if oracle is not None else None
    if plot is not None:
        check_picture(plot)
    if checkpoint is not None:
        _checkpoint(method, checkpoint, json, plot)
        return
    if plot is not None:
        raise ValueError("--plot draws the momentum of a checkpoint: name one with --checkpoint")
    if method is None:
        raise ValueError("name an oracle, such as polar-express:5, or a file with --checkpoint")
    n, m = read_shape(shape)
    method = method.at(n, m)
    name, layers = spectra.resolve(spectrum, side=min(n, m))
    if json:
        write_json({"layers": [_record(layer, method) for layer in layers]})
        return
    console = open_console(WIDTH)
    names = [f"{layer.name}, {layer.shape[0]} x {layer.shape[1]}" for layer in layers] if len(layers) > 1 else [name]
    rows = [Row([on, *_cells(spectra.judge_layer(method, one))]) for on, one in zip(names, layers, strict=True)]
    if len(layers) > 1:
        rows.append(Row(["together", *_cells(spectra.judge_layers(method, layers))], "bold"))
    _print(console, f"{method}, normaliser {method.normaliser}", ("on", *NUMBERS), rows)
    console.print(_bound(method), soft_wrap=True)
    console.print(f"cost for {n} x {m}: {method.flops(n, m):.4g} floating point operations")


def transfer(
    lr: float, momentum: float, source: str, target: str, rule: str, spectrum: str | None, json: bool = False
) -> None:
    """The four rules compared, the chosen one marked, with the reason."""
    transfers = {name: carry.transfer(lr, momentum, source, target, name, spectrum) for name in rules.RULES}
    taken, console = transfers[rules.find(rule).name], open_console(WIDTH)
    if json:
        write_json({"rule": rules.find(rule).name, "lr": taken.lr, "momentum": taken.momentum, "why": taken.why,
                    "spectrum": taken.spectrum, "from": source, "to": target, "rules": transfers})  # fmt: skip
        return
    ends = (("from", source, taken.source), ("to", target, taken.target))
    judged = [Row([f"{role} {parse(text)}", *_cells(inexactness)]) for role, text, inexactness in ends]
    _print(console, f"judged on {taken.spectrum}", ("oracle", *NUMBERS), judged)
    titles = ("rule", "lr", "momentum (PyTorch)", "alpha = 1 - momentum", "lr factor", "alpha factor")
    formulas = ("gamma_B/gamma_A", "alpha_B/alpha_A", "from")
    rows = []
    for name, carried in transfers.items():
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


def _checkpoint(method: PolarMethod | None, path: Path, json: bool, plot: Path | None) -> None:
    """The answer; then each kind of layer, and the candidates."""
    console, matrices = open_console(WIDTH), momenta.read(path)
    hidden = json or not console.is_terminal
    answer = advice.advise_on(
        matrices, method, lambda ms: track(ms, description="decomposing", console=console, disable=hidden)
    )
    if plot is not None:
        plotting.save(answer, plot)
    if json:
        oracle = None if answer.oracle is None else advice.text(answer.oracle)
        lr = None if answer.lr is None else answer.lr * answer.lr_factor
        numbers = {"exact_enough": answer.exact_enough, "polar": oracle, "lr": lr, "lr_factor": answer.lr_factor}
        layers = [_record(r.layer, r.oracle) for r in answer.reports]
        write_json({"answer": {"lines": answer.lines, **numbers, "cost": answer.cost}, "layers": layers})
        return
    for line in answer.lines:
        console.print(Text(line), soft_wrap=True)  # a name may contain markup
    console.print()
    _print_kinds(console, path, answer)
    _print_candidates(console, answer)
    for used in dict.fromkeys(r.oracle for r in answer.reports if r.oracle is not None):
        console.print(_bound(used), soft_wrap=True)
    if plot is not None:
        console.print(f"written: {plot}", soft_wrap=True)


def _print_kinds(console: Console, path: Path, answer: advice.Advice) -> None:
    """What the oracle in use makes of each kind of layer."""
    rows = []
    for kind in answer.kinds:
        first, (n, m) = kind.reports[0], kind.reports[0].layer.shape
        numbers = _cells(kind.in_use) if kind.in_use is not None else [""] * len(NUMBERS)
        spread = max(r.layer.values[0] / r.layer.values[-1] for r in kind.reports)
        rank = min(r.layer.values.size for r in kind.reports)
        size = [f"{n} x {m}", str(len(kind.reports)), f"{spread:.0e}", str(rank)]
        rows.append(Row([kind.name, *size, str(first.oracle or "not named"), *numbers]))
    if answer.in_use is not None:
        rows.append(Row(["together", "", str(len(answer.reports)), "", "", "", *_cells(answer.in_use)], "bold"))
    titles = ("layers", "shape", "matrices", "sigma_1/sigma_r", "rank", "oracle in use", *NUMBERS)
    title = f"momentum in {path}: the worst of each kind of layer"
    _print(console, title, titles, rows, closing=int(answer.in_use is not None))


def _print_candidates(console: Console, answer: advice.Advice) -> None:
    """Every candidate on all layers, by cost."""
    rows = []
    for one in answer.candidates:
        numbers, enough = worst(one.each), sum(map(advice.is_exact_enough, one.each))
        assert numbers is not None
        cost = f"{one.price / (answer.paid or answer.candidates[0].price):.2f}"
        style = "bold" if one is answer.chosen else ""
        rows.append(Row([advice.text(one.oracle), cost, f"{enough} of {len(one.each)}", *_cells(numbers)], style))
    title = f"candidates: the worst numbers of any layer; cost over {'yours' if answer.paid else 'the cheapest'}"
    _print(console, title, ("oracle", "cost", "exact enough in", *NUMBERS), rows)


def _bound(method: PolarMethod) -> str:
    """The bound, with the interval it holds on."""
    lower = method.map.lower or 1e-3
    where = f"singular values in [{lower:g}, 1] after {method.normaliser} normalisation"
    return f"bound of {method}: delta at most {method.error_bound(lower):.4g} for {where}"


LONGEST = 2**24
"""Longest side of a shape: a synthetic spectrum has a value for each row."""


def read_shape(text: str) -> tuple[int, int]:
    """ "768x3072" -> (768, 3072)."""
    match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text)
    if not match:
        raise ValueError(f"shape must look like 768x3072, got {text!r}")
    n, m = int(match[1]), int(match[2])
    if max(n, m) > LONGEST:
        raise ValueError(f"shape must have sides of at most {LONGEST}, got {text}")
    return n, m


def _record(layer: spectra.Layer, method: PolarMethod | None) -> dict[str, Any]:
    """A layer as plain data; without the three numbers if its oracle is not known."""
    record: dict[str, Any] = {"name": layer.name, "shape": layer.shape}
    if method is not None:
        used = method.at(*layer.shape)
        judged = spectra.judge_layer(used, layer)
        record |= {"oracle": str(used), **{name: getattr(judged, name) for name in NUMBERS}}
    return record | {"singular_values": layer.values.tolist()}


def _print(console: Console, title: str, columns: tuple[str, ...], rows: Sequence[Row], closing: int = 0) -> None:
    Sheet(title, columns, rows, aligned_left=LEFT, prose=PROSE, closing=closing).print(console)


def _cells(i: Inexactness) -> list[str]:
    return [f"{i.gap:.4f}", f"{i.overshoot:.4f}", "" if i.lifted is None else f"{i.lifted:.3f}", f"{i.delta:.4f}"]
