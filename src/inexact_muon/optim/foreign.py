"""Checkpoints of other optimizers, loaded by parameter names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from inexact_muon.optim.core import LMOOptimizer
from inexact_muon.optim.loading import Loaded, options, partners, placed
from inexact_muon.optim.options import shown, warn
from inexact_muon.optim.sources import averaged, each_translated, is_ours, keeps_sums, translated_state
from inexact_muon.optim.structure import check_structure


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
        state_dict: of the other optimizer.
        names: parameter names in the order in which the other optimizer's constructor got them, over all groups. Not
            needed if the file has them (torch's optimizers save them if made from named parameters).
        sorted_by_size: whether the other constructor sorted the matrices of a group, largest shape first, as
            KellerJordan's Muon and MuonWithAuxAdam do (their single-device versions do not). None infers it from the
            shapes of the buffers if these are unambiguous.
        sums: whether the momentum is the sum mu b + g, as in early versions of Muon, and not an average; it is then
            multiplied by 1 - mu. Must be given if the file leaves it open.
    """
    groups = check_structure(state_dict)
    if all(is_ours(group) for group in groups):
        raise ValueError("this checkpoint was saved by this library: load it with optimizer.load_state_dict")
    mine = {name: p for name, p, _ in optimizer.named()}
    listed = _names(groups, names)
    here = {there: name for name, there in partners(list(mine), listed).items()}
    listed = [here.get(name, name) for name in listed]
    for name in listed:
        if name not in mine:
            raise ValueError(f"names: {name!r} is not a parameter of this optimizer")
    if len(set(listed)) < len(listed):
        twice = next(name for i, name in enumerate(listed) if name in listed[:i])
        raise ValueError(f"names: {twice!r} stands there twice")
    entries_by_name: dict[str, Loaded] = {}
    start = 0
    for group in groups:
        summed = keeps_sums(group, state_dict["state"]) if sums is None else sums
        if summed is None:
            raise ValueError(
                "the checkpoint does not say whether its momentum is a sum (mu b + g, as in early versions of Muon) or "
                "an average: pass sums=True or False"
            )
        each = each_translated(group, state_dict["state"])
        states = [state_dict["state"].get(key, {}) for key in group["params"]]
        states = [averaged(state, group) if summed else state for state in states]
        entries = [translated_state(s, ours["algorithm"], group) for s, ours in zip(states, each, strict=True)]
        group_names = listed[start : start + len(entries)]
        start += len(entries)
        by_size = False if sorted_by_size is None and "ns_steps" in group else sorted_by_size  # torch's never sorts
        order = _in_order(group_names, entries, each[0] if each else {"algorithm": "adamw"}, mine, by_size)
        entries_by_name |= {name: (ours, entry) for name, ours, entry in zip(order, each, entries, strict=True)}
    optimizer.load_state_dict(_merged(optimizer, entries_by_name))


def _names(groups: Sequence[Mapping[str, Any]], names: Sequence[str] | None) -> list[str]:
    count = sum(len(group["params"]) for group in groups)
    if names is None:
        listed = [name for group in groups for name in group.get("param_names") or ()]
        if len(listed) != count:
            raise ValueError(
                f"the checkpoint has no names for its {count} parameters: pass names= in the order in which the other "
                "optimizer's constructor got them"
            )
        return listed
    if len(names) != count:
        raise ValueError(f"names: {len(names)} given, the checkpoint has {count} parameters")
    return list(names)


def _in_order(
    names: list[str],
    entries: Sequence[Mapping[str, Any]],
    group: Mapping[str, Any],
    params: Mapping[str, Tensor],
    sorted_by_size: bool | None,
) -> list[str]:
    """The names of a group's parameters in the order of the file; raises if shapes do not decide."""
    by_size = sorted(names, key=lambda name: tuple(params[name].shape), reverse=True)  # stable, like the source's
    if group["algorithm"] == "adamw" or by_size == names or sorted_by_size is False:
        return names
    if sorted_by_size:
        return by_size
    orders = (names, by_size)
    fitting = [x for x in orders if all(_shaped(params[n], e) for n, e in zip(x, entries, strict=True))]
    if len(fitting) == 2:
        raise ValueError(
            "the buffers fit both the order given and the order by size: pass sorted_by_size=True (KellerJordan's "
            "Muon, MuonWithAuxAdam) or False (the single-device versions, torch)"
        )
    return fitting[0] if fitting else names


def _shaped(p: Tensor, entry: Mapping[str, Any]) -> bool:
    return all(tuple(v.shape) == tuple(p.shape) for k, v in entry.items() if k != "step" and isinstance(v, Tensor))


def _merged(optimizer: LMOOptimizer, entries: Mapping[str, Loaded]) -> dict[str, Any]:
    """The optimizer's own state_dict, updated with the loaded entries."""
    result = optimizer.state_dict()
    names = [name for name, *_ in optimizer.named()]
    by_index = {i: entries[name] for i, name in enumerate(names) if name in entries}
    state, misfit = dict(result["state"]), []
    loaded = placed(optimizer, by_index, state)
    for laid, (group, indices, sources, other) in zip(result["param_groups"], loaded, strict=True):
        misfit += [f"{names[i]} ({shown(by_index[i][0]['algorithm'])} there, {group['algorithm']} here)" for i in other]
        if len(sources) == len(indices):
            alike = [source for source in sources if source["algorithm"] == group["algorithm"]]
            laid.update(options(laid, alike, used=len(sources) > len(other)))
        elif sources:
            warn(f"options of {group['name']} are kept: the file has only some of its parameters")
    if misfit:
        warn(f"parameters with a different algorithm here start with empty state: {', '.join(misfit)}")
    return {**result, "state": state}
