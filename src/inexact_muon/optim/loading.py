"""What loading a checkpoint leaves as the constructor made it, and what it takes over bit for bit."""

from __future__ import annotations

import warnings
from collections.abc import Container
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from inexact_muon.optim.options import FOREIGN


def keep_algorithm(group: dict[str, Any], mine: dict[str, Any], known: Container[str]) -> None:
    """A loaded group with the constructor's algorithm; a warning names both if the file says another one.

    Entries that the file lacks are the constructor's; those of torch.optim.Muon that the ball replaces are dropped.
    """
    for key in ("ball", "length", "view", "algorithm"):
        saved = group.get(key, mine[key])
        if saved != mine[key]:
            warnings.warn(f"checkpoint was made with {saved}; keeping {mine[key]}", stacklevel=3)
        group[key] = mine[key]
    for key, value in mine.items():
        group.setdefault(key, value)
    for key in [key for key in group if key not in known and key in FOREIGN]:
        del group[key]


def restore_buffers(optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
    """State tensors in the dtype that was saved, which torch would cast to the parameter's."""
    order = [index for group in state_dict["param_groups"] for index in group["params"]]
    params = [p for group in optimizer.param_groups for p in group["params"]]
    for index, p in zip(order, params, strict=True):
        for key, value in state_dict["state"].get(index, {}).items():
            if isinstance(value, Tensor):
                optimizer.state[p][key] = value.detach().clone().to(p.device)
