"""Translation of other optimizers' parameter groups and states.

Supports torch.optim.Muon, torch.optim.AdamW and Adam, KellerJordan's Muon with and without auxiliary Adam, timm's and
pytorch_optimizer's Muon (and MuonClip, SCION), and groups with `use_muon`. None of them saves the order in which its
constructor got the parameters: see `foreign`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from inexact_muon._text import write
from inexact_muon.lmo import Spectral
from inexact_muon.optim.options import shown, warn
from inexact_muon.optim.structure import HEAVYBALL, iteration

NEUTRAL = {
    *("params", "param_names", "use_muon", "name", "betas", "ns_steps", "ns_coefficients", "adjust_lr_fn", "eps"),
    *("amsgrad", "decoupled_weight_decay", "foreach", "capturable", "differentiable", "fused"),
    *("use_fallback", "fallback_lr_scale", "algo", "conv_mode", "normalize_spatial", "safety_factor", "scale_eps"),
    *("verbose", "ns_coeffs", "ns_method", "ns_reset_steps", "use_adjusted_lr", "weight_decouple", "step"),
    *("norm_type", "norm_kwargs", "constraint", "unconstrained", "qk_clip_alpha"),
}
"""Options that are translated or do not affect results."""

SCALES = {None: "original", "rms_to_rms": "spectral"}
"""Names of shape factors that are called otherwise here."""

ENTRIES = {"step", "skipped", "use_muon", "momentum_buffer", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"}
"""Entries of a parameter's state in Muon and AdamW; more of them are another algorithm's."""

SPECTRAL_NORMS = (1, 2, 3)
"""norm_type of pytorch_optimizer's SCION that is the spectral ball: auto, spectral and that of kernels."""

AVERAGED = {"params", "param_names", "name", "use_muon", "lr", "initial_lr", "momentum", "weight_decay"}
"""Options of KellerJordan's groups of matrices, whose momentum is an average."""

TAKEN = {"lr", "momentum", "weight_decay", "nesterov", "maximize", "initial_lr"}
"""Options with the same meaning here."""


class SavedParameter(NamedTuple):
    """One parameter of a file.

    Attributes:
        group: its options with this library's names; one dict for all of a group that have the same algorithm.
        key: of its state.
        name: None if the file has no names.
        source: its group as it is in the file.
        entry: its state as it is in the file, {} if it has none.
    """

    group: dict[str, Any]
    key: Any
    name: str | None
    source: Mapping[str, Any]
    entry: Mapping[str, Any]

    def state(self, summed: bool = False) -> dict[str, Any]:
        """The state with this library's names; a momentum buffer without `step` counts as one step.

        Args:
            summed: the momentum is the sum b <- mu b + g; the average (1 - mu) b takes its place.
        """
        if not self.entry:
            return {}
        ours = {"momentum_buffer" if key == "d" else key: x for key, x in self.entry.items() if key != "use_muon"}
        buffer = self.entry.get("momentum_buffer")
        if summed and isinstance(buffer, Tensor) and is_number(self.source.get("momentum")):
            ours["momentum_buffer"] = buffer * (1.0 - float(self.source["momentum"]))
        moments = {"exp_avg", "exp_avg_sq"} & set(self.entry)
        uncounted = moments or (self.group["algorithm"] != "lmo" and "momentum_buffer" not in ours)
        # pytorch_optimizer counts the steps of a group
        counts = {"step": self.entry.get("step", self.source.get("step", None if uncounted else 1.0))}
        if counts["step"] is None:
            raise ValueError("the checkpoint has moments of AdamW without the number of its steps")
        if "skipped" in ours:
            counts["skipped"] = ours["skipped"]
        for name, count in counts.items():
            if isinstance(count, bool) or not is_number(count) or not 0 <= count < 2**53 or count % 1:
                raise ValueError(f"{name} of a parameter in the checkpoint must be a count of steps")
            ours[name] = torch.tensor(float(count), dtype=torch.float32)
        return ours


def saved_parameters(group: Mapping[str, Any], states: Mapping[Any, Any]) -> list[SavedParameter]:
    """The parameters of a group, in order.

    Raises:
        ValueError: their state has another meaning here.
    """
    groups: dict[Any, dict[str, Any]] = {}
    parameters = []
    names = group.get("param_names") or [None] * len(group["params"])
    for key, name in zip(group["params"], names, strict=True):
        entry = states.get(key, {})
        kind = entry.get("use_muon")
        if isinstance(kind, Tensor):
            raise ValueError("use_muon of a parameter in the checkpoint must be True or False, not a tensor")
        if kind not in groups:
            groups[kind] = translated(group, entry)
        if not is_ours(group):
            more = sorted(map(shown, set(entry) - ENTRIES - ({"d"} if _is_scion(group) else set())))
            if more:
                raise ValueError(f"the state of the checkpoint has {', '.join(more)}, which neither Muon nor AdamW has")
            if not entry and _is_scion(group) and group.get("step"):
                raise ValueError(
                    "the checkpoint is SCIONLight's, whose momentum is in the gradients and not in the file"
                )
        parameters.append(SavedParameter(groups[kind], key, name, group, entry))
    return parameters


def is_ours(group: Mapping[str, Any]) -> bool:
    """Whether a group was saved by an optimizer of this library."""
    return "ball" in group and "algorithm" in group


def is_number(value: Any) -> bool:
    """Whether a value is a number, or a tensor of one element that holds a real one."""
    if isinstance(value, Tensor):
        return value.numel() == 1 and value.layout == torch.strided and not value.is_meta and not value.is_complex()
    return isinstance(value, int | float)


def keeps_sums(group: Mapping[str, Any], states: Mapping[Any, Any]) -> bool | None:
    """Whether the momentum of a group is the sum mu b + g, as in MuonClip of pytorch_optimizer; None if that is open.

    torch, timm and pytorch_optimizer save the coefficients of the iteration, and KellerJordan's Muon saves no option
    but `AVERAGED`; all of them average. Early versions of Muon, and those derived from them, save other options.
    """
    if is_ours(group) or "qk_clip_threshold" in group:
        return not is_ours(group)
    known = {"ns_coefficients", "ns_coeffs", "dampening"} & set(group) or set(group) <= AVERAGED
    buffers = any("momentum_buffer" in states.get(key, {}) for key in group["params"])
    return None if buffers and not known else False  # SGD's, with dampening, is refused by `translated`


def translated(group: Mapping[str, Any], entry: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Options of another optimizer's group with this library's names; those of this library are returned as they are.

    Args:
        entry: the state of one of its parameters: timm decides between Muon and AdamW for each.
    """
    if is_ours(group):
        return dict(group)
    _check_kind(group)
    scion, entry = _is_scion(group), entry or {}
    timm = is_number(group.get("fallback_lr_scale")) and is_number(group.get("lr"))
    muon = entry.get("use_muon", "exp_avg" not in entry) if timm else "betas" not in group
    ours = {key: group[key] for key in TAKEN if key in group}
    if group.get("use_muon", muon) and not group.get("use_fallback"):
        ours["algorithm"] = "lmo"
        method = iteration(group)
        if method is not None:
            ours["ball"] = write(Spectral(polar=method), full=True)
        if "adjust_lr_fn" in group:
            ours["scale"] = SCALES.get(group["adjust_lr_fn"], group["adjust_lr_fn"])
        if isinstance(group.get("use_adjusted_lr"), bool):
            ours["scale"] = "match_rms_adamw" if group["use_adjusted_lr"] else "original"
    else:
        if not isinstance(group.get("betas"), list | tuple) or len(group["betas"]) != 2:
            raise ValueError("betas of the checkpoint must be two numbers")
        ours |= {"algorithm": "adamw", "momentum": group["betas"][0], "beta2": group["betas"][1]}
        ours |= {"lr": group["lr"] * group["fallback_lr_scale"]} if timm else {}
        ours |= {"eps": group["eps"]} if "eps" in group else {}
    if scion:
        free = group.get("unconstrained", not group.get("constraint"))
        ours |= {"momentum": 1.0 - group["momentum"], "constrained": not free, "radius": group.get("scale", 1.0)}
    rest = {k: v for k, v in group.items() if k not in NEUTRAL | TAKEN and not (k == "scale" and scion)}
    numbers = {k: v for k, v in rest.items() if isinstance(v, int | float) and k != "qk_clip_threshold"}
    strange = sorted(set(rest) - set(numbers)) + ["norm_type"] * (group.get("norm_type", 1) not in SPECTRAL_NORMS)
    if strange:
        warn(f"options of the checkpoint without a counterpart here: {', '.join(map(shown, strange))}")
    return numbers | ours


def _is_scion(group: Mapping[str, Any]) -> bool:
    """Whether `momentum` is the weight of the new gradient: Scion's, and pytorch_optimizer's."""
    return "norm_kwargs" in group and is_number(group.get("momentum"))


def _check_kind(group: Mapping[str, Any]) -> None:
    for key in sorted((NEUTRAL | TAKEN) & set(group)):
        if isinstance(group[key], Tensor) and not is_number(group[key]):
            raise ValueError(f"{key} of the checkpoint's groups must be one value, not a tensor of several or of none")
    if "dampening" in group:
        raise ValueError(
            "the checkpoint is torch.optim.SGD's, whose buffer is a sum of gradients and not their average"
        )
    if "storage_dtype" in group and "betas" in group:
        raise ValueError(HEAVYBALL)
    if group.get("algo", "muon") != "muon" or (group.get("use_muon") and "ns_steps" in group and "betas" in group):
        raise ValueError("the checkpoint is AdaMuon's, which divides by second moments of its steps: not Muon")
    if group.get("weight_decouple") is False and group.get("weight_decay"):
        raise ValueError("the checkpoint was made with weight_decouple=False, which has no counterpart here")
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
