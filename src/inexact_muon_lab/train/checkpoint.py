"""Checkpoints of unfinished runs: plain tensors and numbers, replaced atomically, loaded with weights_only.

The file is a zip archive written by `torch.save`, with its SHA-256 as the archive's comment: `torch.load` can read it,
and `load` verifies the checksum.
"""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any

import torch

from inexact_muon_lab.errors import warn
from inexact_muon_lab.store.files import replace

WORD = b"sha256 "
_LENGTH = len(WORD) + 64


def save(path: Path, content: dict[str, Any]) -> None:
    """Replace the checkpoint; after a kill or on a full disk the old one is kept."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    body = buffer.getvalue()[:-2] + _LENGTH.to_bytes(2, "little")  # the last two bytes are the comment's length
    replace(path, body + WORD + hashlib.sha256(body).hexdigest().encode())


def load(path: Path, device: torch.device) -> dict[str, Any] | None:
    """The content of a checkpoint; None if there is none or, with a warning, if its checksum is wrong."""
    try:
        archive = path.read_bytes()
    except FileNotFoundError:
        return None
    if archive[-_LENGTH:] != WORD + hashlib.sha256(archive[:-_LENGTH]).hexdigest().encode():
        warn(f"{path} is damaged or cut off; the run starts again from the beginning")
        return None
    content: dict[str, Any] = torch.load(io.BytesIO(archive), map_location=device, weights_only=True)
    return content
