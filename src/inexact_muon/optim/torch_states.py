"""The way back: a state as torch.optim.Muon and torch.optim.AdamW save it."""

from __future__ import annotations

from typing import Any, NamedTuple

from inexact_muon.lmo import Spectral
from inexact_muon.optim.core import LMOOptimizer
from inexact_muon.optim.decay import PLAIN_STAGES
from inexact_muon.optim.lengths import Fixed
from inexact_muon.optim.options import warn
from inexact_muon.polar.polynomial import Composition
from inexact_muon.schedules.published import JORDAN
from inexact_muon.views import Whole

SCALES = ("original", "match_rms_adamw")
"""Shape factors that torch.optim.Muon has, too."""

PLAIN = {"radius": 1.0, "constrained": False, "maximize": False, "keep": 1.0, **PLAIN_STAGES}
"""Options that torch.optim.Muon lacks, with the values at which it does the same."""

MOMENTUM, MOMENTS = ("momentum_buffer",), ("exp_avg", "exp_avg_sq", "step")

SWITCHES = {"amsgrad": False, "foreach": None, "capturable": False, "differentiable": False, "fused": None}
"""Options of torch.optim.AdamW that have no part here."""


class TorchStates(NamedTuple):
    """State dicts for torch.optim.Muon and torch.optim.AdamW; their groups have the names of the parameters."""

    muon: dict[str, Any]
    adamw: dict[str, Any]


def to_torch(optimizer: LMOOptimizer) -> TorchStates:
    """The state of an optimizer as torch.optim.Muon and torch.optim.AdamW save theirs, for the same parameters.

    Each state dict has a group for each group here, in the same order, with its "param_names": make the optimizers of
    torch from such groups and load. torch's Muon has one quintic for all steps and works in bfloat16; if the oracle is
    another one, its default is taken, with a warning. `load_foreign` reads both back.

    Raises:
        TypeError: it is another library's optimizer.
        ValueError: torch.optim.Muon cannot continue this optimizer.
    """
    if not isinstance(optimizer, LMOOptimizer):
        raise TypeError(f"to_torch needs an optimizer of this library, got {type(optimizer).__name__}")
    if optimizer.own_momenta:
        raise ValueError("ranks of EF21Muon hold momenta of their own, which torch.optim.Muon cannot continue")
    names = {id(p): name for name, p, _ in optimizer.named()}
    muon, adamw = _empty(), _empty()
    for group in optimizer.param_groups:
        options = _muon(group, optimizer) if group["algorithm"] == "lmo" else _adamw(group)
        laid, keys = (muon, MOMENTUM) if group["algorithm"] == "lmo" else (adamw, MOMENTS)
        first = sum(len(other["params"]) for other in laid["param_groups"])
        for k, p in enumerate(group["params"]):
            state = optimizer.state.get(p, {})
            if keys[0] in state and float(state["step"]):
                # Copies: torch's optimizers load tensors as they are, and would go on with ours.
                laid["state"][first + k] = {key: state[key].detach().clone() for key in keys}
        indices, own = range(first, first + len(group["params"])), [names[id(p)] for p in group["params"]]
        laid["param_groups"].append({**options, "params": list(indices), "param_names": own})
    return TorchStates(muon, adamw)


def _empty() -> dict[str, Any]:
    return {"state": {}, "param_groups": []}


def _adamw(group: dict[str, Any]) -> dict[str, Any]:
    same = {key: group[key] for key in ("lr", "eps", "weight_decay", "maximize")}
    return {**same, "betas": (group["momentum"], group["beta2"]), "decoupled_weight_decay": True, **SWITCHES}


def _muon(group: dict[str, Any], optimizer: LMOOptimizer) -> dict[str, Any]:
    ball, name = optimizer.ball(group), group["name"]
    reason = ""
    if not isinstance(ball, Spectral) or ball != Spectral(polar=ball.polar) or optimizer.length(group) != Fixed():
        reason = f"ball {ball} with length {optimizer.length(group)}"
    elif optimizer.view(group) != Whole() or any(p.ndim != 2 for p in group["params"]):
        reason = f"view {optimizer.view(group)}: it takes whole matrices"
    elif group["scale"] not in SCALES:
        reason = f"scale {group['scale']!r}: it has {' and '.join(SCALES)}"
    else:
        others = [key for key, plain in PLAIN.items() if group[key] != plain]
        reason = ", ".join(f"{key}={group[key]}" for key in others)
    if reason:
        raise ValueError(f"torch.optim.Muon cannot continue group {name}: {reason}")
    assert isinstance(ball, Spectral)
    rows = ball.polar.map.coefficients if isinstance(ball.polar, Composition) else ()
    if not rows or len(rows[0]) != len(JORDAN) or set(rows) != {rows[0]}:
        warn(f"group {name}: torch's five steps replace {ball.polar}; the best lr may be another")
        rows = (JORDAN,) * 5
    same = {key: group[key] for key in ("lr", "weight_decay", "momentum", "nesterov")}
    return {**same, "ns_coefficients": rows[0], "ns_steps": len(rows), "eps": 1e-7, "adjust_lr_fn": group["scale"]}
