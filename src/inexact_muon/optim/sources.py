"""Translation of other optimizers' parameter groups and states.

Supports torch.optim.Muon, torch.optim.AdamW and Adam, KellerJordan's Muon with and without auxiliary Adam, and groups
with `use_muon`. None of them saves the order in which its constructor got the parameters: see `foreign`.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from inexact_muon._text import write
from inexact_muon.lmo import Spectral
from inexact_muon.polar import Polynomial
from inexact_muon.schedules.published import JORDAN

NEUTRAL = {
    *("params", "param_names", "use_muon", "name", "betas", "ns_steps", "ns_coefficients", "adjust_lr_fn", "eps"),
    *("amsgrad", "decoupled_weight_decay", "foreach", "capturable", "differentiable", "fused"),
}
"""Options that are translated or do not affect results."""

MOST_STEPS = 100
"""torch.optim.Muon rejects this many."""

TAKEN = {"lr", "momentum", "weight_decay", "nesterov", "maximize", "initial_lr"}
"""Options with the same meaning here."""


def is_ours(group: Mapping[str, Any]) -> bool:
    """Whether a group was saved by an optimizer of this library."""
    return "ball" in group and "algorithm" in group


def translated(group: Mapping[str, Any]) -> dict[str, Any]:
    """A group of another optimizer with this library's option names; groups of this library are returned as they are.

    Raises:
        ValueError: its state has another meaning here.
    """
    if is_ours(group):
        return dict(group)
    _check_kind(group)
    adamw = not group["use_muon"] if "use_muon" in group else "betas" in group
    found = {key: group[key] for key in TAKEN if key in group}
    found |= {key: group[key] for key in ("params", "param_names") if group.get(key) is not None}
    found["algorithm"] = "adamw" if adamw else "lmo"
    if adamw:
        if not isinstance(group.get("betas"), list | tuple) or len(group["betas"]) != 2:
            raise ValueError("betas of the checkpoint must be two numbers")
        found["momentum"], found["beta2"] = group["betas"]
        found |= {"eps": group["eps"]} if "eps" in group else {}
    else:
        found |= _oracle(group)
    numbers = {k: v for k, v in group.items() if k not in NEUTRAL | TAKEN and isinstance(v, int | float)}
    strange = sorted(set(group) - NEUTRAL - TAKEN - set(numbers))
    if strange:
        warnings.warn(
            f"options of the checkpoint without a counterpart here: {', '.join(map(shown, strange))}", stacklevel=7
        )
    return numbers | found


def shown(value: Any) -> str:
    """A value of a file for an error message: short, on one line."""
    text = repr(value) if not isinstance(value, str) else value
    return "".join(c if c.isprintable() else "?" for c in text[:200])


def is_number(value: Any) -> bool:
    """Whether a value is a number, or a tensor of one element that holds a real one."""
    if isinstance(value, Tensor):
        return value.numel() == 1 and value.layout == torch.strided and not value.is_meta and not value.is_complex()
    return isinstance(value, int | float)


def _check_kind(group: Mapping[str, Any]) -> None:
    if "dampening" in group:
        raise ValueError(
            "the checkpoint is torch.optim.SGD's, whose buffer is a sum of gradients and not their average"
        )
    if group.get("amsgrad"):
        raise ValueError("the checkpoint was made with amsgrad=True, which has no counterpart here")
    if "betas" in group and group.get("decoupled_weight_decay") is False and group.get("weight_decay"):
        raise ValueError(
            f"the checkpoint is torch.optim.Adam's with weight_decay={shown(group['weight_decay'])} added to the "
            "gradient; AdamW here decouples it: set it to 0 in the file's groups to continue without"
        )
    if not {"betas", "momentum"} & set(group):
        known = ", ".join(map(shown, sorted(set(group) - {"params"})))
        raise ValueError(f"the checkpoint's groups have the options {known}: neither Muon's nor AdamW's")


def _oracle(group: Mapping[str, Any]) -> dict[str, Any]:
    """Ball and scale of a torch.optim.Muon group; KellerJordan's groups do not contain the oracle."""
    found: dict[str, Any] = {}
    if "ns_steps" in group:
        steps, step = group["ns_steps"], group.get("ns_coefficients") or JORDAN
        if not isinstance(steps, int) or not 1 <= steps < MOST_STEPS:
            raise ValueError(f"ns_steps of the checkpoint must be 1 to {MOST_STEPS - 1}")
        if not isinstance(step, list | tuple) or not all(isinstance(a, int | float) and abs(a) < 1e6 for a in step):
            raise ValueError("ns_coefficients of the checkpoint must be numbers")
        found["ball"] = write(Spectral(polar=Polynomial((tuple(step),) * steps)), full=True)
    if "adjust_lr_fn" in group:
        found["scale"] = group["adjust_lr_fn"] if group["adjust_lr_fn"] is not None else "original"
    return found


def translated_state(entry: Mapping[str, Any], algorithm: str) -> dict[str, Any]:
    """A parameter's state with this library's names; a momentum buffer without `step` counts as one step."""
    found = dict(entry)
    moments = algorithm != "lmo" or "exp_avg" in entry or "exp_avg_sq" in entry
    step = entry.get("step", None if moments else 1.0)
    if entry and step is None:
        raise ValueError("the checkpoint has moments of AdamW without the number of its steps")
    if entry:
        found["step"] = _count("step", step)
    if "skipped" in found:
        found["skipped"] = _count("skipped", found["skipped"])
    return found


def _count(name: str, value: Any) -> Tensor:
    """A number of steps as a float32 tensor without dimensions."""
    if isinstance(value, bool) or not is_number(value) or not 0 <= value < 2**53:
        raise ValueError(f"{name} of a parameter in the checkpoint must be a count of steps")
    return torch.tensor(float(value), dtype=torch.float32)
