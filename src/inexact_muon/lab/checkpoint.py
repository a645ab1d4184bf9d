"""Where a half-finished run resumes: plain tensors and numbers, replaced atomically, loaded with weights_only."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import torch

from inexact_muon.lab.errors import LabError
from inexact_muon.lab.files import replace


def save(path: Path, content: dict[str, Any]) -> None:
    """Replaces the checkpoint; after a kill or on a full disk the old one is still there."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    replace(path, buffer.getvalue())


def load(path: Path, device: torch.device) -> dict[str, Any] | None:
    """The content of a checkpoint; None if there is none."""
    if not path.exists():
        return None
    try:
        content: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    except (RuntimeError, pickle.UnpicklingError, EOFError) as error:
        why = str(error).splitlines()[0]
        raise LabError(f"{path} cannot be read ({why}); delete it to start this run from the beginning") from None
    return content
