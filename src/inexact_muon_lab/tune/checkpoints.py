"""Momentum buffers of a saved optimizer.

Formats: `.pt` of torch.save, opened with weights_only; `.safetensors`, tensors whose name contains "momentum"; a folder
of torch.distributed.checkpoint, of which only momentum tensors are read. No code in them is executed (`folders`).
"""

from __future__ import annotations

import warnings
import zipfile
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor

from inexact_muon_lab.checkpoints.folders import check_stored, read_folder
from inexact_muon_lab.checkpoints.momenta import BUFFER, Momentum, momenta


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
        matrices = momenta(loaded)
    except RecursionError:
        raise ValueError(f"{path} is nested too deeply or contains itself: no optimizer saves that") from None
    if not matrices:
        raise ValueError(
            f"{path} has no momentum matrix: save optimizer.state_dict() of a Muon after a step; "
            "weights alone are not enough"
        )
    return matrices


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


def _read_distributed(path: Path) -> dict[str, Tensor]:
    if not (path / ".metadata").is_file():
        raise ValueError(f"{path} is a folder without .metadata, so not one of torch.distributed.checkpoint")
    return read_folder(path, lambda name: BUFFER in name)
