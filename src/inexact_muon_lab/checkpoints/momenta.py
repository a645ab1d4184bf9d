"""Momentum matrices in an optimizer's state or in its checkpoint, and the oracle that the state names.

Supported: `state_dict()` of this package, of torch.optim.Muon and of KellerJordan's Muon, at any depth of a nested
checkpoint; and tensors by name. Files: `.pt` of torch.save, opened with weights_only; `.safetensors`, tensors whose
name contains "momentum"; a folder of torch.distributed.checkpoint, of which only momentum tensors are read. No code in
them is executed (`folders`).
"""

from __future__ import annotations

import re
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor

from inexact_muon._text import call
from inexact_muon.lmo import Spectral
from inexact_muon.lmo import parse as parse_ball
from inexact_muon.optim.structure import check_group, iteration
from inexact_muon.polar import Jordan, PolarMethod, Polynomial
from inexact_muon.schedules.published import JORDAN
from inexact_muon.views import Flatten, Whole
from inexact_muon.views import parse as parse_view
from inexact_muon_lab.checkpoints.folders import check_stored, read_folder

BUFFER = "momentum_buffer"
BUFFERS = (BUFFER, "momentum")
"""Keys of a momentum buffer in a parameter's state: ours, torch's and KellerJordan's, and dion's."""

NO_LMO = ("adamw", "lion")
"""Algorithms of parameter groups whose buffers no oracle sees."""

BY_MODULE: dict[str, PolarMethod] = {"muon": Jordan(5)}
"""Package of an optimizer whose state does not name its oracle -> what it runs: KellerJordan's."""


@dataclass(frozen=True)
class Momentum:
    """One matrix of a parameter's momentum buffer, as passed to the oracle. oracle and lr are None if unknown."""

    name: str
    matrix: Tensor
    oracle: PolarMethod | None
    lr: float | None = None
    parameter: str = ""


def read(path: Path) -> list[Momentum]:
    """The momentum matrices of a checkpoint; raises ValueError if there are none."""
    if not path.exists():
        raise FileNotFoundError(f"there is no checkpoint {path}")
    if not path.is_dir() and not path.is_file():
        raise ValueError(f"{path} is a pipe or a device: copy the checkpoint to a file")
    if path.is_dir():
        loaded: Any = read_folder(path, lambda name: BUFFER in name)
    else:
        loaded = _read_safetensors(path) if path.suffix == ".safetensors" else _read_torch(path)
    try:
        buffers = momenta(loaded)
    except RecursionError:
        raise ValueError(f"{path} is nested too deeply or contains itself: no optimizer saves that") from None
    if not buffers:
        raise ValueError(
            f"{path} has no momentum matrix: save optimizer.state_dict() of a Muon after a step; "
            "weights alone are not enough"
        )
    return buffers


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
    # LookupError: a text file empties the unpickler's stack
    except (RuntimeError, EOFError, ValueError, LookupError, zipfile.BadZipFile):
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


def momenta(loaded: Any) -> list[Momentum]:
    """Momentum matrices of an optimizer, its state_dict, a checkpoint that contains it, or a dict of tensors by name.

    Vectors, zero buffers and layers with a ball other than the spectral one are left out; raises ValueError if a buffer
    contains a NaN or an infinity.
    """
    oracle = None
    if isinstance(loaded, torch.optim.Optimizer):
        oracle = BY_MODULE.get(type(loaded).__module__.partition(".")[0])
        loaded = loaded.state_dict()
    states = [(p, s) for p, s in _states(loaded, "") if any(_buffer(e) is not None for e in s["state"].values())]
    if states:
        return [m for path, s in states for m in _of_state(s, f"{path}." if len(states) > 1 else "", oracle)]
    return [m for name, x in _tensors(loaded, "") if "momentum" in name for m in matrices(_short(name), x)]


def cut(x: Tensor, view: str = "whole") -> list[Tensor]:
    """The matrices of x under a view given as text; kernels of other optimizers are flattened."""
    cutting = parse_view(view)
    if isinstance(cutting, Whole) and x.ndim == 4:
        cutting = Flatten()
    return [matrix for part in cutting.cut(x) for matrix in part.reshape(-1, *part.shape[-2:])]


def _states(loaded: Any, path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Optimizer states at any depth, with their paths."""
    if isinstance(loaded, Mapping) and isinstance(loaded.get("state"), Mapping) and "param_groups" in loaded:
        yield path, loaded
    elif isinstance(loaded, Mapping | list | tuple):
        for key, value in loaded.items() if isinstance(loaded, Mapping) else enumerate(loaded):
            yield from _states(value, f"{path}.{key}" if path else str(key))


def _of_state(state: Mapping[str, Any], prefix: str, default: PolarMethod | None) -> Iterator[Momentum]:
    groups = state["param_groups"]
    if not isinstance(groups, list | tuple):
        raise ValueError(f"param_groups of the checkpoint must be a list, got {type(groups).__name__}")
    for i, group in enumerate(groups):
        check_group(i, group)
        oracle, view = _oracle(group) or default, str(group.get("view", "whole"))
        lr = float(lr) if isinstance(lr := group.get("lr"), int | float | Tensor) else None
        for key, name in zip(group["params"], group.get("param_names") or group["params"], strict=True):
            buffer = _buffer(state["state"].get(key))
            if buffer is not None and _is_spectral(group) and group.get("algorithm") not in NO_LMO:
                yield from matrices(f"{prefix}{name}", buffer, view, oracle, lr)


def matrices(
    name: str, x: Tensor, view: str = "whole", oracle: PolarMethod | None = None, lr: float | None = None
) -> Iterator[Momentum]:
    """The matrices of one buffer."""
    name = "".join(c if c.isprintable() else "?" for c in name)  # text from a file must not control the terminal
    if x.ndim < 2 or not x.numel() or not x.dtype.is_floating_point:
        return
    whole = getattr(x, "full_tensor", lambda: x)()
    plain = whole.layout == torch.strided and not (whole.is_meta or whole.is_nested)
    if not plain or whole.nbytes > whole.untyped_storage().nbytes():
        raise ValueError(
            f"the momentum of {name} is sparse, nested, expanded or without data: no supported optimizer saves that"
        )
    if whole.dtype.itemsize < 2:  # torch has few operations for 8-bit dtypes
        whole = whole.float()
    if not bool(whole.isfinite().all()):
        raise ValueError(f"the momentum of {name} contains a NaN or an infinity: the run has diverged")
    try:
        parts = cut(whole.detach(), view)
    except (ValueError, TypeError, RuntimeError, LookupError, ArithmeticError, SyntaxError):
        raise ValueError(f"the momentum of {name}, {tuple(x.shape)}, does not fit its view {view!r}") from None
    for i, part in enumerate(parts):
        if min(part.shape) > 1 and bool(part.any()):
            used = oracle.at(part.shape[0], part.shape[1]) if oracle is not None else None
            yield Momentum(name if len(parts) == 1 else f"{name}[{i}]", part, used, lr, name)


def _oracle(group: Mapping[str, Any]) -> PolarMethod | None:
    """The oracle of a group: from the ball's text here, from coefficients in torch.optim.Muon; else None."""
    if "ball" in group:
        try:
            ball = parse_ball(group["ball"])
        except (ValueError, TypeError, AttributeError):  # the text of a user-defined oracle
            return None
        return ball.polar if isinstance(ball, Spectral) else None
    method = iteration(group)
    steps = len(method.coefficients) if isinstance(method, Polynomial) else 0
    return Jordan(steps) if steps and method == Polynomial((JORDAN,) * steps) else method


def _is_spectral(group: Mapping[str, Any]) -> bool:
    """Whether the ball is the spectral one, also with an oracle of a user's own; another optimizer names no ball."""
    try:
        return "ball" not in group or call(group["ball"])[0] == Spectral.name
    except (ValueError, TypeError):
        return False


def _buffer(entry: Any) -> Tensor | None:
    """The momentum of a parameter."""
    values = [entry.get(key) for key in BUFFERS] if isinstance(entry, Mapping) else []
    return next((value for value in values if isinstance(value, Tensor) and value.ndim), None)


def _tensors(loaded: Any, path: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(loaded, Tensor):
        yield path, loaded
    elif isinstance(loaded, Mapping):
        for key, value in loaded.items():
            yield from _tensors(value, f"{path}.{key}" if path else str(key))


def _short(name: str) -> str:
    """The parameter's own name: "optim.state.fc.weight.momentum_buffer" -> "fc.weight"."""
    return re.sub(r"^(?:[^.]+\.)*?state\.", "", name).removesuffix(f".{BUFFER}")
