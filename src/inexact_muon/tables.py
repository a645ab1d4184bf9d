"""What `inexact-muon delta` prints."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table

from inexact_muon.inexactness import Inexactness, measure, predict
from inexact_muon.lmo import Spectral
from inexact_muon.polar import parse
from inexact_muon.schedules.grammar import nearest
from inexact_muon.schedules.spectra import SPECTRA


def delta(oracle: str, shape: str, spectrum: str, checkpoint: Path | None) -> None:
    """Predicted inexactness of an oracle on a spectrum, or measured on the matrices of a checkpoint."""
    method = parse(oracle)
    console = Console()
    table = Table(title=f"{method}, normaliser {method.normaliser}")
    for title in ("on", "delta", "gap", "overshoot", "factor", "stochastic factor"):
        table.add_column(title, justify="left" if title == "on" else "right")
    if checkpoint is None:
        n, m = read_shape(shape)
        table.add_row(f"{spectrum}, {n} x {m}", *_cells(predict(method, read_spectrum(spectrum, min(n, m)))))
        console.print(table)
        console.print(
            f"error bound at lower {method.map.lower or 1e-3:g}: {method.error_bound(method.map.lower or 1e-3):.4g}"
        )
        console.print(f"cost: {method.flops(n, m):.4g} floating point operations")
        return
    ball = Spectral(polar=method)
    found = list(matrices(torch.load(checkpoint, map_location="cpu", weights_only=True)))
    if not found:
        raise ValueError(f"{checkpoint} holds no floating matrix")
    for name, matrix in track(found, description="measuring", console=console):
        table.add_row(name, *_cells(measure(ball, matrix, ball(matrix), exact=True)))
    console.print(table)


def read_shape(text: str) -> tuple[int, int]:
    """ "768x3072" -> (768, 3072)."""
    found = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text)
    if not found:
        raise ValueError(f"shape must look like 768x3072, got {text!r}")
    return int(found[1]), int(found[2])


def read_spectrum(text: str, n: int) -> NDArray[np.float64]:
    """A named spectrum of n values, or the values in a file."""
    if text in SPECTRA:
        return SPECTRA[text](n)
    path = Path(text)
    if not path.exists():
        raise ValueError(f"spectrum {text!r} is neither a file nor a name: {nearest(text, SPECTRA)}")
    values = np.load(path, allow_pickle=False) if path.suffix == ".npy" else np.loadtxt(path)
    if not np.isfinite(values).all() or (values < 0).any():
        raise ValueError(f"{path} must hold singular values: finite and not negative")
    return np.asarray(values, dtype=np.float64).ravel()


def matrices(loaded: Any, prefix: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Floating tensors with two sides above 1, by name, of a nested checkpoint; a 4-D kernel is flattened."""
    if isinstance(loaded, torch.Tensor):
        if loaded.dtype.is_floating_point and loaded.ndim >= 2:
            flat = loaded.flatten(1)
            if min(flat.shape) > 1:
                yield prefix or "tensor", flat
    elif isinstance(loaded, Mapping | list | tuple):
        pairs = loaded.items() if isinstance(loaded, Mapping) else enumerate(loaded)
        for key, value in pairs:
            yield from matrices(value, f"{prefix}.{key}" if prefix else str(key))


def _cells(i: Inexactness) -> list[str]:
    return [f"{x:.4f}" for x in (i.delta, i.gap, i.overshoot, i.factor, i.stochastic_factor)]
