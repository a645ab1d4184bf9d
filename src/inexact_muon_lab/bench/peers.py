"""Optimizers of other packages, unmodified or with products in float32 where bfloat16 is emulated."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


@dataclass(frozen=True)
class Peer:
    """An optimizer of a package (its name on the index), with options of its parameter group and of its constructor,
    and those that are added on an accelerator, for example to use its kernels."""

    package: str
    module: str
    name: str
    group: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    accelerated: dict[str, Any] = field(default_factory=dict)

    def make(self, params: list[torch.Tensor], device: torch.device, lr: float = 1e-3) -> torch.optim.Optimizer:
        """Create the optimizer; raises whatever its import or constructor raises."""
        cls = getattr(importlib.import_module(self.module), self.name)
        options = self.options if device.type == "cpu" else {**self.options, **self.accelerated}
        optimizer: torch.optim.Optimizer = cls([{"params": params, **self.group}], lr=lr, **options)
        return optimizer


TORCH = "torch.optim.Muon"

PEERS: dict[str, Peer] = {
    TORCH: Peer("torch", "torch.optim", "Muon"),
    "pytorch_optimizer.Muon": Peer("pytorch_optimizer", "pytorch_optimizer", "Muon", {"use_muon": True}),
    "heavyball.Muon": Peer("heavyball", "heavyball", "Muon"),
    "timm.optim.Muon": Peer("timm", "timm.optim", "Muon"),
    "muon.SingleDeviceMuon": Peer("muon-optimizer", "muon", "SingleDeviceMuon"),
    "dion.Muon": Peer("dion", "dion", "Muon", accelerated={"use_triton": True}),
    "emerging_optimizers.Muon": Peer("emerging-optimizers", "emerging_optimizers.orthogonalized_optimizers", "Muon"),
    "gram_newton_schulz.Muon": Peer(
        "gram-newton-schulz", "gram_newton_schulz", "Muon", options={"ns_algorithm": "gram_newton_schulz"}
    ),
}
"""Name -> peer. Those that cannot be imported or fail on the device are listed with the reason."""


class Float32Products(TorchFunctionMode):
    """Replace casts to bfloat16 by casts to float32, so that the code of a peer runs in float32."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.bfloat16:
            return args[0].float()
        if func is torch.Tensor.to:
            args = tuple(torch.float32 if a is torch.bfloat16 else a for a in args)
            kwargs |= {"dtype": torch.float32} if kwargs.get("dtype") is torch.bfloat16 else {}
        return func(*args, **kwargs)


def in_float32(peer: Peer, step: Callable[[], object]) -> Callable[[], object]:
    """A step of a peer with products in float32. heavyball is not compiled then, as its graph contains the casts."""
    if peer.package == "heavyball":
        utils: Any = importlib.import_module("heavyball.utils")
        utils.compile_mode = None

    def work() -> None:
        with Float32Products():
            step()

    return work
