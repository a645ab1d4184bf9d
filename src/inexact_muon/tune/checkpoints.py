"""Momentum buffers of a saved optimizer, evaluated under several oracles.

Formats: `.pt` of torch.save, opened with weights_only; `.safetensors`, tensors whose name contains "momentum"; a folder
of torch.distributed.checkpoint, of which only momentum tensors are read. No code in them is executed (`folders`).
"""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor

from inexact_muon.checkpoints.folders import check_stored, read_folder
from inexact_muon.checkpoints.momenta import BUFFER, Momentum, momenta
from inexact_muon.inexactness import Inexactness, predict
from inexact_muon.polar import Choice, Jordan, PolarExpress, PolarMethod, choose
from inexact_muon.schedules.prices import CPU
from inexact_muon.tune.spectra import Layer, spectrum_of

CANDIDATES: tuple[PolarExpress | Jordan, ...] = (*(PolarExpress(steps) for steps in range(1, 9)), Jordan(5))
"""Oracles that every layer is evaluated under."""

GAP, OVERSHOOT = 0.03, 1.07
"""Tolerances of gap and overshoot on a layer's own spectrum."""


def read(path: Path) -> list[Momentum]:
    """The momentum matrices of a checkpoint; raises ValueError if there are none."""
    if not path.exists():
        raise FileNotFoundError(f"there is no checkpoint {path}")
    if not path.is_dir() and not path.is_file():
        raise ValueError(f"{path} is a pipe or a device: copy the checkpoint to a file")
    if path.is_dir():
        loaded = _read_distributed(path)
    elif path.suffix == ".safetensors":
        loaded = _read_safetensors(path)
    else:
        loaded = _read_torch(path)
    try:
        found = momenta(loaded)
    except RecursionError:
        raise ValueError(f"{path} is nested too deeply or contains itself: no optimizer saves that") from None
    if not found:
        raise ValueError(
            f"{path} has no momentum matrix: save optimizer.state_dict() of a Muon after a step; "
            "weights alone are not enough"
        )
    return found


@dataclass(frozen=True)
class LayerReport:
    """One layer of a checkpoint.

    Attributes:
        oracle: the oracle in use, None if unknown.
        in_use: its inexactness here.
        candidates: inexactness of each of `CANDIDATES`.
        cheapest: the cheapest oracle by error bound for this shape, and its inexactness.
        advice: the cheapest oracle on a CPU whose gap and overshoot are at most GAP and OVERSHOOT on this spectrum, or
            the one in use if that is good enough and another would take more time or flops; None if no candidate is
            good enough.
        kept: whether the advice is to keep the oracle in use.
    """

    layer: Layer
    oracle: PolarMethod | None
    in_use: Inexactness | None
    candidates: tuple[Inexactness, ...]
    cheapest: tuple[PolarMethod, Inexactness]
    advice: Choice | None
    kept: bool


def examine(momentum: Momentum, oracle: PolarMethod | None = None) -> LayerReport:
    """Evaluate a layer under the given oracle, or else the one named by its file, and under the candidates."""
    layer, used = spectrum_of(momentum.name, momentum.matrix), oracle or momentum.oracle
    used = None if used is None else used.at(*layer.shape)
    best, in_use = choose(*layer.shape, spread=True).method, None if used is None else predict(used, layer.values)
    try:
        advice = choose(*layer.shape, spectrum=layer.values, gap=GAP, overshoot=OVERSHOOT)
    except ValueError:
        advice = None
    keep = None if used is None or in_use is None else _keep(used, in_use, advice, layer.shape)
    return LayerReport(
        layer,
        used,
        in_use,
        tuple(predict(method, layer.values) for method in CANDIDATES),
        (best, predict(best, layer.values)),
        keep or advice,
        keep is not None,
    )


def _keep(used: PolarMethod, found: Inexactness, advice: Choice | None, shape: tuple[int, int]) -> Choice | None:
    """The oracle in use as a choice, if it is good enough and the advice would take more time or flops."""
    if found.gap > GAP or found.overshoot > OVERSHOOT:
        return None
    cost = CPU.of(used, *shape)
    if advice is not None and advice.cost < cost and advice.method.flops(*shape) < used.flops(*shape):
        return None
    why = f"keep what you use: gap {found.gap:.3g} <= {GAP:g}, overshoot {found.overshoot:.3g} <= {OVERSHOOT:g}"
    return Choice(used, cost, why)


def bottleneck(found: Sequence[Inexactness]) -> tuple[int, float]:
    """(i, max_i (nu_i/(1-eta_i))^2): the layer that determines the number of iterations, Theorem 7 in two numbers."""
    worst = max(range(len(found)), key=lambda i: found[i].factor)
    return worst, found[worst].factor ** 2


def _read_torch(path: Path) -> Any:
    zipped = zipfile.is_zipfile(path)
    try:
        if zipped:
            check_stored(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's, of the pickle protocol
            return torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    except UnpicklingError:
        if zipped:
            raise ValueError(
                f"{path} contains Python objects, which are not loaded for safety: save only optimizer.state_dict()"
            ) from None
        raise ValueError(f"{path} is not a file that torch.save wrote") from None
    except (
        RuntimeError,
        EOFError,
        ValueError,
        LookupError,
        zipfile.BadZipFile,
    ):  # LookupError: a text file empties the unpickler's stack
        raise ValueError(f"{path} is not a complete file of torch.save: it may be truncated") from None


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        raise ValueError(f"{path} needs the extra: pip install 'inexact-muon[safetensors]'") from None
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys() if "momentum" in name}  # noqa: SIM118
    except SafetensorError:
        raise ValueError(f"{path} is not a complete safetensors file") from None


def _read_distributed(path: Path) -> dict[str, Tensor]:
    if not (path / ".metadata").is_file():
        raise ValueError(f"{path} is a folder without .metadata, so not one of torch.distributed.checkpoint")
    return read_folder(path, lambda name: BUFFER in name)
