"""Where a half-finished run resumes: plain tensors and numbers, replaced atomically, loaded with weights_only.

The file is what `torch.save` writes, a zip archive, with the SHA-256 of it as the archive's comment: `torch.load` reads
it as it is, and `load` believes nothing whose checksum is wrong.
"""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any

import torch

from inexact_muon.lab.errors import warn
from inexact_muon.lab.store.files import replace

WORD = b"sha256 "
_LENGTH = len(WORD) + 64


def save(path: Path, content: dict[str, Any]) -> None:
    """Replaces the checkpoint; after a kill or on a full disk the old one is still there."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    replace(path, seal(buffer.getvalue()))


def load(path: Path, device: torch.device) -> dict[str, Any] | None:
    """The content of a checkpoint; None if there is none, and with a warning if it is not what was written."""
    try:
        archive = path.read_bytes()
    except FileNotFoundError:
        return None
    if not sealed(archive):
        warn(f"{path} is damaged or cut off; the run starts again from the beginning")
        return None
    content: dict[str, Any] = torch.load(io.BytesIO(archive), map_location=device, weights_only=True)
    return content


def seal(archive: bytes) -> bytes:
    """A zip archive without comment, with its checksum as its comment; the last two bytes are the comment's length."""
    body = archive[:-2] + _LENGTH.to_bytes(2, "little")
    return body + WORD + hashlib.sha256(body).hexdigest().encode()


def sealed(archive: bytes) -> bool:
    """Whether the checksum at the end is there and right."""
    body, comment = archive[:-_LENGTH], archive[-_LENGTH:]
    return comment == WORD + hashlib.sha256(body).hexdigest().encode()
