"""Sharded parameters (DTensor, FSDP2): the whole tensor for the oracle, its own piece back for the update.

A shard orthogonalised by itself is another update; so every rank gathers the whole and takes its part of the answer.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor


def gathered(x: Tensor) -> Tensor:
    """x itself, or all of a sharded x on every rank."""
    sharded: Any = x
    return sharded.full_tensor() if hasattr(x, "device_mesh") else x


def laid_out(whole: Tensor, like: Tensor) -> Tensor:
    """`whole`, known to every rank, laid out as `like` is; nothing is sent."""
    sharded: Any = like
    if not hasattr(like, "device_mesh"):
        return whole
    cls, mesh = type(sharded.detach()), sharded.device_mesh
    return cls.from_local(whole, mesh, run_check=False).redistribute(mesh, sharded.placements)


def same_layout(x: Tensor, like: Tensor) -> Tensor:
    """x laid out as `like` is; something is sent only if it is not."""
    sharded, wanted = x, like
    if not hasattr(x, "device_mesh") or sharded.placements == wanted.placements:  # type: ignore[attr-defined]
        return x
    return sharded.redistribute(wanted.device_mesh, wanted.placements)  # type: ignore[attr-defined]
