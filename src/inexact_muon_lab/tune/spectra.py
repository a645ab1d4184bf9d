"""Recorded spectra of momentum, to evaluate an oracle without the model.

A file contains, for each momentum matrix, its shape, rank, largest singular value and at most 64 order statistics of
log10(sigma/sigma_1): 256 bytes a layer. A name selects everything below it, like a folder: "gpt-late" is all hidden
matrices of that run at that stage, "gpt-late/mlp" a part of them. Several layers are evaluated as one point of the
product of their balls: delta and overshoot by maximum, gap weighted by dual norms, as in the optimizer's telemetry.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from inexact_muon._text import nearest
from inexact_muon.inexactness import Inexactness
from inexact_muon.polar import PolarMethod
from inexact_muon.polar.exact import rank_threshold
from inexact_muon.schedules.judgement import judge_rows
from inexact_muon_lab.checkpoints.momenta import matrices, momenta, read
from inexact_muon_lab.store.files import replace

Array = NDArray[np.float64]
COLUMNS = ("names", "shapes", "ranks", "tops", "curves")
"""Arrays of a file of spectra, a row a layer."""

POINTS = 64
"""Number of order statistics stored per layer."""

SIDE = 1024
"""Default length of a synthetic spectrum."""

SHIPPED = Path(__file__).parent / "recorded.npz"
"""Written by studies/record_spectra.py."""

CHECKPOINTS = (".pt", ".pth", ".bin", ".ckpt", ".safetensors")
"""Suffixes of saved optimizers, whose momentum is decomposed; so is that of a folder."""

DEFAULT = "gpt-late"
"""Default spectrum of `transfer`."""


LARGEST = 2.0**500
"""Sums and squares of singular values of matrices with larger entries overflow; they are taken to have these."""


def gaussian(n: int) -> Array:
    """Quantiles of the quarter-circle law, the spectrum of a square Gaussian matrix; the smallest is about 1/n."""
    x = np.linspace(0.0, 1.0, 20001)
    angle = np.arcsin(x)
    cumulative = (2.0 / np.pi) * (angle + np.sin(angle) * np.cos(angle))
    return np.interp((np.arange(n, 0, -1) - 0.5) / n, cumulative, x)


def log_uniform(n: int, smallest: float = 1e-3) -> Array:
    """Evenly spaced in the logarithm between 1 and `smallest`."""
    return np.geomspace(1.0, smallest, n) if n > 1 else np.ones(1)


def power_law(n: int, exponent: float = 1.0) -> Array:
    """sigma_j = j^-exponent."""
    return np.arange(1.0, n + 1.0) ** -exponent


SPECTRA: dict[str, Callable[[int], Array]] = {
    "gaussian": gaussian,
    "log-uniform": log_uniform,
    "power-law": power_law,
}
"""Named spectra with largest singular value 1, those of every table; deterministic."""


@dataclass(frozen=True, eq=False)
class Layer:
    """The spectrum of one matrix: its singular values in descending order, without those at rounding level."""

    name: str
    shape: tuple[int, int]
    values: Array


def spectrum_of(name: str, matrix: Tensor) -> Layer:
    """By an SVD in float64; values at the rounding level of the stored dtype are dropped."""
    wide = matrix.detach().double()
    wide = wide / wide.abs().max()
    s = torch.linalg.svdvals(wide)
    resolved = max(wide.shape) * torch.finfo(wide.dtype).eps * s[0]
    positive = s[s > torch.maximum(rank_threshold(wide, matrix.dtype), resolved)]
    n, m = matrix.shape
    size = min(float(matrix.abs().max()), LARGEST)
    return Layer(name, (n, m), positive.numpy(force=True) * size)


def judge_each(methods: Iterable[PolarMethod], layers: Sequence[Layer]) -> list[Inexactness]:
    """Inexactness of a method on its layer, for each layer; directions at rounding level count as null ones.

    Layers of equal method, shape and rank are judged together: a checkpoint may have thousands of small ones.
    """
    alike: dict[tuple[PolarMethod, tuple[int, int], int], list[int]] = {}
    for i, (method, layer) in enumerate(zip(methods, layers, strict=True)):
        alike.setdefault((method, layer.shape, layer.values.size), []).append(i)
    results: dict[int, Inexactness] = {}
    for (method, shape, rank), indices in alike.items():
        used, stack = method.at(*shape), np.stack([layers[i].values for i in indices])
        rows = judge_rows(used.map, stack, max(rank, min(shape)), used.normaliser)
        results |= {i: Inexactness(j.delta, j.gap, j.overshoot, j.lifted) for i, j in zip(indices, rows, strict=True)}
    return [results[i] for i in range(len(layers))]


def judge_layer(method: PolarMethod, layer: Layer) -> Inexactness:
    """Inexactness of a method on a layer."""
    return judge_each([method], [layer])[0]


def judge_layers(method: PolarMethod, layers: Sequence[Layer]) -> Inexactness:
    """Inexactness of a method on all layers, as one point of the product of their balls."""
    return together(layers, judge_each([method] * len(layers), layers))


def together(layers: Sequence[Layer], each: Sequence[Inexactness]) -> Inexactness:
    """The inexactness of all layers as one point of the product of their balls, from that of each."""
    duals = np.array([layer.values.sum() for layer in layers])
    sides = np.array([min(layer.shape) for layer in layers])
    gap, lifted = (
        float((weights / weights.sum()) @ np.array(values))
        for weights, values in ((duals, [i.gap for i in each]), (sides, [i.lifted for i in each]))
    )
    return Inexactness(max(i.delta for i in each), gap, max(i.overshoot for i in each), lifted)


def record(momentum: Any, path: str | Path, label: str = "") -> Path:
    """Add the spectra of momentum to a file; an existing label is replaced.

    Args:
        momentum: an optimizer, its state_dict, or a dict of momentum tensors by name.
        path: an .npz file; other labels are kept, and it is replaced atomically.
        label: prefix of the names, such as "step-1000" or "late".

    Example:
        record(optimizer, "spectra.npz", label="late")     # then: transfer(..., spectrum="spectra.npz:late")
    """
    path = Path(path)
    if path.suffix != ".npz":
        raise ValueError(f"spectra are kept in an .npz file, got {path}")
    if isinstance(momentum, Mapping) and momentum and all(isinstance(x, Tensor) for x in momentum.values()):
        buffers = [m for name, x in momentum.items() for m in matrices(str(name), x)]
    else:
        buffers = momenta(momentum)
    if not buffers:
        raise ValueError("there is no momentum matrix to record: call optimizer.step() first")
    recorded = [spectrum_of(f"{label}/{m.name}" if label else m.name, m.matrix) for m in buffers]
    old = load(path) if path.exists() else []
    replaced = select(old, label)
    save([*(layer for layer in old if layer not in replaced), *recorded], path)
    return path


def save(layers: Sequence[Layer], path: Path) -> None:
    """Write a file of spectra atomically."""
    curves = np.full((len(layers), POINTS), np.nan, dtype=np.float32)
    for row, layer in zip(curves, layers, strict=True):
        ranks = positions(layer.values.size)
        row[: ranks.size] = np.log10(layer.values[ranks] / layer.values[0])
    content = io.BytesIO()
    np.savez_compressed(
        content,
        names=np.array([layer.name for layer in layers]),
        shapes=np.array([layer.shape for layer in layers], dtype=np.int32),
        ranks=np.array([layer.values.size for layer in layers], dtype=np.int32),
        tops=np.array([layer.values[0] for layer in layers], dtype=np.float32),
        curves=curves,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    replace(path, content.getvalue())


def load(path: Path) -> list[Layer]:
    """The layers of a file: .npz of `record`, .npz of plain arrays of singular values, .npy or text."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    try:
        if path.suffix == ".npz":
            with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
                arrays = dict(file)
            if arrays.keys() >= set(COLUMNS):
                return _unpack(arrays)
        else:
            arrays = {path.stem: np.load(path, allow_pickle=False) if path.suffix == ".npy" else np.loadtxt(path)}
    except (ValueError, BadZipFile, EOFError):
        raise ValueError(f"{path} is not a file of singular values: .npz of `record`, .npy or text") from None
    return [layer_of(values, name, str(path)) for name, values in arrays.items()]


def layer_of(values: ArrayLike, name: str = "given", where: str = "spectrum") -> Layer:
    """A layer from given singular values, in any order."""
    array = np.asarray(values)
    if array.dtype.kind not in "fiu" or not np.isfinite(array).all() or (array < 0).any() or not (array > 0).any():
        raise ValueError(f"{where} must hold singular values: finite, not negative and not all zero")
    if array.squeeze().ndim > 1:
        raise ValueError(f"{where} must be a list of singular values, got an array of shape {array.shape}")
    s = np.sort(array.astype(np.float64).ravel())[::-1]
    return Layer(name, (s.size, s.size), s[s > 0.0])


def resolve(spectrum: Any, side: int = SIDE) -> tuple[str, list[Layer]]:
    """Name and layers of a spectrum: singular values, a shipped or synthetic name, "FILE.npz:label", or a checkpoint.

    Args:
        side: length of a synthetic spectrum; recorded ones keep their own.
    """
    if isinstance(spectrum, Path):
        spectrum = str(spectrum)
    if not isinstance(spectrum, str):
        return "given singular values", [layer_of(spectrum)]
    if spectrum in SPECTRA:
        return f"{spectrum} of {side} values", [layer_of(SPECTRA[spectrum](side), spectrum)]
    if shipped := select(_shipped(), spectrum):
        return spectrum, shipped
    head, _, label = spectrum.rpartition(":")
    path, label = (Path(head), label) if head.endswith(".npz") else (Path(spectrum), "")
    if not path.exists():
        known = (*SPECTRA, *labels(_shipped()))
        raise ValueError(f"spectrum {spectrum!r} is neither a file nor a name: {nearest(spectrum, known)}")
    if path.is_dir() or path.suffix in CHECKPOINTS:
        return spectrum, [spectrum_of(m.name, m.matrix) for m in read(path)]
    layers = load(path)
    several = sorted({layer.name.partition("/")[0] for layer in layers if "/" in layer.name})
    if not label and len(several) > 1:
        raise ValueError(f"{path} holds {', '.join(several)}: name one, as in {path}:{several[-1]}")
    chosen = select(layers, label)
    if not chosen:
        raise ValueError(f"{path} has no {label!r}: {nearest(label, labels(layers))}")
    return spectrum, chosen


def select(layers: Iterable[Layer], name: str) -> list[Layer]:
    """The layers with this name or below it; all of them for an empty name."""
    return [layer for layer in layers if not name or f"{layer.name}/".startswith(f"{name}/")]


def labels(layers: Iterable[Layer]) -> list[str]:
    """All names that select something, except those of single layers."""
    parts = [layer.name.split("/")[:-1] for layer in layers]
    return sorted({"/".join(p[: i + 1]) for p in parts for i in range(len(p))})


def positions(count: int) -> NDArray[np.int64]:
    """Indices of the stored order statistics: all up to 64, else dense at both ends, evenly in the logarithm."""
    if count <= POINTS:
        return np.arange(count)
    ends = np.geomspace(1.0, (count + 1) / 2, POINTS // 2).round().astype(np.int64) - 1
    return np.unique(np.concatenate([ends, count - 1 - ends]))


def _unpack(arrays: Mapping[str, Any]) -> list[Layer]:
    layers = []
    for name, (n, m), rank, top, curve in zip(*(arrays[key] for key in COLUMNS), strict=True):
        ranks = positions(int(rank))
        logs = np.interp(np.arange(rank), ranks, curve[: ranks.size].astype(np.float64))
        layers.append(Layer(str(name), (int(n), int(m)), float(top) * 10.0**logs))
    return layers


@lru_cache(maxsize=1)
def _shipped() -> tuple[Layer, ...]:
    return tuple(load(SHIPPED))
