"""Other people's optimizers, as they are, or with their products in float32 where bfloat16 is emulated."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


@dataclass(frozen=True)
class Peer:
    """An optimizer of another package.

    Attributes:
        package: its name on a package index, for the version.
        group: what its parameter group needs.
        options: what its constructor needs.
        accelerated: options on an accelerator, such as its kernels.
    """

    package: str
    module: str
    name: str
    group: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    accelerated: dict[str, Any] = field(default_factory=dict)

    def make(self, params: list[torch.Tensor], device: torch.device, lr: float = 1e-3) -> torch.optim.Optimizer:
        """The optimizer on params; whatever its import or constructor raises."""
        cls = getattr(importlib.import_module(self.module), self.name)
        more = self.options if device.type == "cpu" else {**self.options, **self.accelerated}
        made: torch.optim.Optimizer = cls([{"params": params, **self.group}], lr=lr, **more)
        return made


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
"""Every one that is installed and steps on the device gets a row; the others are named with the reason."""


class Float32Products(TorchFunctionMode):
    """Casts to bfloat16 give float32, so that a peer's own code runs in float32."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.bfloat16:
            return args[0].float()
        if func is torch.Tensor.to:
            args = tuple(torch.float32 if a is torch.bfloat16 else a for a in args)
            kwargs |= {"dtype": torch.float32} if kwargs.get("dtype") is torch.bfloat16 else {}
        return func(*args, **kwargs)


def in_float32(name: str, step: Callable[[], object]) -> Callable[[], object]:
    """A step of a peer with its products in float32. heavyball is not compiled then, since a graph has its casts."""
    if name.startswith("heavyball"):
        utils: Any = importlib.import_module("heavyball.utils")
        utils.compile_mode = None

    def work() -> None:
        with Float32Products():
            step()

    return work
