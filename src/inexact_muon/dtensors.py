"""Sharded parameters (DTensor, FSDP2, tensor parallelism): the local piece and the whole tensor."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def local(x: Tensor) -> Tensor:
    """This rank's piece, sharing memory."""
    return x.detach().to_local() if hasattr(x, "device_mesh") else x  # type: ignore[attr-defined]


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


def same_layout(x: Tensor, like: Tensor) -> Tensor:
    """x laid out like `like`; communicates only if the layouts differ."""
    if not hasattr(x, "device_mesh") or x.placements == like.placements:  # type: ignore[attr-defined]
        return x
    return x.redistribute(like.device_mesh, like.placements)  # type: ignore[attr-defined]


def pieces(p: Tensor, state: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
    """This rank's piece of a parameter with its gradient, and of the state, sharing memory."""
    if not hasattr(p, "device_mesh"):
        return p, state
    assert p.grad is not None
    x, gradient = local(p), local(same_layout(p.grad, p))
    x.grad = gradient.wait() if hasattr(gradient, "wait") else gradient
    return x, {key: local(value) if isinstance(value, Tensor) else value for key, value in state.items()}


def is_fake(x: Tensor) -> bool:
    """Whether x is a fake tensor, without values."""
    return torch._guards.detect_fake_mode([x]) is not None
