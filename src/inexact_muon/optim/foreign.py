"""Checkpoints of other optimizers, loaded by parameter names; and the way back, as torch.optim saves them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from torch import Tensor
from torch.optim import Optimizer

from inexact_muon.lmo import Spectral
from inexact_muon.optim.core import LMOOptimizer
from inexact_muon.optim.decay import PLAIN_STAGES
from inexact_muon.optim.lengths import FIXED
from inexact_muon.optim.loading import Loaded, merged, partners, restore_buffers
from inexact_muon.optim.options import BUFFERS, shown, warn
from inexact_muon.optim.sources import is_ours, keeps_sums, saved_parameters
from inexact_muon.optim.structure import check_structure
from inexact_muon.polar.polynomial import Composition
from inexact_muon.schedules.published import JORDAN
from inexact_muon.views import Whole


def load_foreign(
    optimizer: LMOOptimizer,
    state_dict: Mapping[str, Any],
    names: Sequence[str] | None = None,
    *,
    sorted_by_size: bool | None = None,
    sums: bool | None = None,
) -> None:
    """Load a state_dict of torch.optim.Muon or AdamW, KellerJordan's, timm's or pytorch_optimizer's Muon, and others.

    Parameters that the file lacks keep their state: load the pair torch.optim.Muon and torch.optim.AdamW by two calls.
    lr, momentum, betas, eps and weight decay are taken over if the file has one value for all parameters of a group.
    Other differences are reported by a warning. Nothing changes if an error is raised.

    Args:
        optimizer: made from named parameters, for example by `Muon.for_model`.
        names: parameter names in the order in which the other optimizer's constructor got them, over all groups. Not
            needed if the file has them (torch's optimizers save them if made from named parameters).
        sorted_by_size: whether the other constructor sorted the matrices of a group, largest shape first, as
            KellerJordan's Muon and MuonWithAuxAdam do (their single-device versions do not). None infers it from the
            shapes of the buffers if these are unambiguous.
        sums: whether the momentum is the sum mu b + g, as in early versions of Muon, and not an average; it is then
            multiplied by 1 - mu. Must be given if the file leaves it open.
    """
    groups, states = check_structure(state_dict), state_dict["state"]
    if all(map(is_ours, groups)):
        raise ValueError("this checkpoint was saved by this library: load it with optimizer.load_state_dict")
    mine = {name: p for name, p, _ in optimizer.named()}
    count = sum(len(group["params"]) for group in groups)
    listed = [name for group in groups for name in group.get("param_names") or ()] if names is None else list(names)
    if len(listed) != count and names is not None:
        raise ValueError(f"names: {len(listed)} given, the checkpoint has {count} parameters")
    if len(listed) != count:
        raise ValueError(
            f"the checkpoint has no names for its {count} parameters: pass names= in the order in which the other "
            "optimizer's constructor got them"
        )
    here = {there: name for name, there in partners(list(mine), listed).items()}
    listed = [here.get(name, name) for name in listed]
    for name, times in Counter(listed).items():
        if name not in mine:
            raise ValueError(f"names: {name!r} is not a parameter of this optimizer")
        if times > 1:
            raise ValueError(f"names: {name!r} stands there twice")
    by_name: dict[str, Loaded] = {}
    remaining = iter(listed)
    for group in groups:
        summed = keeps_sums(group, states) if sums is None else sums
        if summed is None:
            raise ValueError(
                "the checkpoint does not say whether its momentum is a sum (mu b + g, as in early versions of Muon) or "
                "an average: pass sums=True or False"
            )
        entries = [(saved.group, saved.state(summed)) for saved in saved_parameters(group, states)]
        group_names = list(islice(remaining, len(entries)))
        by_size = False if sorted_by_size is None and "ns_steps" in group else sorted_by_size  # torch's never sorts
        by_name |= zip(_in_order(group_names, entries, mine, by_size), entries, strict=True)
    own = optimizer.state_dict()
    by_index = {i: by_name[name] for i, name in enumerate(mine) if name in by_name}
    state, laid, others = merged(optimizer, by_index, own["state"], partial=True)
    if others:
        algorithms = [group["algorithm"] for _, _, group in optimizer.named()]
        listed = [f"{list(mine)[i]} ({shown(by_index[i][0]['algorithm'])} there, {algorithms[i]} here)" for i in others]
        warn(f"parameters with a different algorithm here start with empty state: {', '.join(listed)}")
    mapped = {**own, "state": state, "param_groups": laid}
    Optimizer.load_state_dict(optimizer, mapped)  # not the optimizer's own, which would check it as another file
    restore_buffers(optimizer, mapped)


def _in_order(
    names: list[str], entries: Sequence[Loaded], params: Mapping[str, Tensor], sorted_by_size: bool | None
) -> list[str]:
    """The names of a group's parameters in the order of the file; raises if shapes do not decide."""
    by_size = sorted(names, key=lambda name: tuple(params[name].shape), reverse=True)  # stable, like the source's
    if by_size == names or entries[0][0]["algorithm"] == "adamw" or sorted_by_size is False:
        return names
    if sorted_by_size:
        return by_size
    buffers = ([x for key, x in entry.items() if key != "step" and isinstance(x, Tensor)] for _, entry in entries)
    shapes = [{tuple(x.shape) for x in xs} for xs in buffers]
    fitting = [
        order
        for order in (names, by_size)
        if all(s <= {tuple(params[name].shape)} for name, s in zip(order, shapes, strict=True))
    ]
    if len(fitting) == 2:
        raise ValueError(
            "the buffers fit both the order given and the order by size: pass sorted_by_size=True (KellerJordan's "
            "Muon, MuonWithAuxAdam) or False (the single-device versions, torch)"
        )
    return fitting[0] if fitting else names


SCALES = ("original", "match_rms_adamw")
"""Shape factors that torch.optim.Muon has, too."""

PLAIN = {"radius": 1.0, "constrained": False, "maximize": False, "keep": 1.0, **PLAIN_STAGES}
"""Options that torch.optim.Muon lacks, with the values at which it does the same."""

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
    muon: dict[str, Any] = {"state": {}, "param_groups": []}
    adamw: dict[str, Any] = {"state": {}, "param_groups": []}
    for group in optimizer.param_groups:
        if group["algorithm"] == "lmo":
            laid, keys, own = muon, BUFFERS["lmo"], _muon(group, optimizer)
        else:
            laid, keys = adamw, (*BUFFERS["adamw"], "step")
            own = {key: group[key] for key in ("lr", "eps", "weight_decay", "maximize")}
            own |= {"betas": (group["momentum"], group["beta2"]), "decoupled_weight_decay": True, **SWITCHES}
        first = sum(len(other["params"]) for other in laid["param_groups"])
        for k, p in enumerate(group["params"], first):
            state = optimizer.state.get(p, {})
            if keys[0] in state and float(state["step"]):
                # Copies: torch's optimizers load tensors as they are, and would go on with ours.
                laid["state"][k] = {key: state[key].detach().clone() for key in keys}
        own["params"] = list(range(first, first + len(group["params"])))
        own["param_names"] = [names[id(p)] for p in group["params"]]
        laid["param_groups"].append(own)
    return TorchStates(muon, adamw)


def _muon(group: Any, optimizer: LMOOptimizer) -> dict[str, Any]:
    ball, name = optimizer.ball(group), group["name"]
    reason = ""
    if not isinstance(ball, Spectral) or ball != Spectral(polar=ball.polar) or optimizer.length(group) != FIXED:
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
