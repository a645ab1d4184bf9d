"""Sharded parameters (DTensor, FSDP2, tensor parallelism): the local piece and the whole tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def local(x: Any) -> Tensor:
    """This rank's piece, sharing memory: the tensor that the DTensor holds, so that it can be recognised."""
    return getattr(x, "_local_tensor", x)


def local_gradients(tensors: Sequence[Any], known: dict[int, Any]) -> list[Tensor | None]:
    """The gradients of this rank's pieces, in the layout of the parameters; communicates only if layouts differ.

    Args:
        known: index -> layout of a gradient that was found to be its parameter's; filled here.
    """
    gradients: list[Tensor | None] = []
    for k, p in enumerate(tensors):
        g = p.grad
        if type(g) is not Tensor and hasattr(g, "_local_tensor"):
            if g._spec is not p._spec and g._spec is not known.get(k):
                if g.placements != p.placements:
                    g = g.redistribute(p.device_mesh, p.placements)
                else:
                    known[k] = g._spec
            g = g._local_tensor
            g = g.wait() if type(g) is not Tensor and hasattr(g, "wait") else g
        gradients.append(g)
    return gradients


def gathered(x: Tensor) -> Tensor:
    """x itself, or a sharded x gathered on every rank."""
    return x.full_tensor() if hasattr(x, "device_mesh") else x  # type: ignore[attr-defined]


def whole_of(piece: Tensor, x: Tensor) -> Tensor:
    """The whole tensor from its pieces, laid out like the DTensor x; on every rank, by collectives."""
    sharded: Any = x.detach()
    shape, stride = sharded.size(), sharded.stride()
    return gathered(
        type(sharded).from_local(
            piece, sharded.device_mesh, sharded.placements, run_check=False, shape=shape, stride=stride
        )
    )


def piece_of(whole: Tensor, x: Tensor) -> Tensor:
    """This rank's piece of a replicated tensor, laid out like the DTensor x; nothing is sent."""
    sharded: Any = x.detach()
    mesh = sharded.device_mesh
    return local(type(sharded).from_local(whole, mesh, run_check=False).redistribute(mesh, sharded.placements))


def is_fake(x: Tensor) -> bool:
    """Whether x is a fake tensor, without values."""
    return torch._guards.detect_fake_mode([x]) is not None
