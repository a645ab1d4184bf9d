"""Maps a checkpoint to the optimizer's layout: parameters by name, options by group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from inexact_muon.lmo import Spectral, parse
from inexact_muon.optim.adamw import buffer_dtype
from inexact_muon.optim.groups import Groups
from inexact_muon.optim.options import ALGORITHM, BUFFERS, SCHEDULED, SCHEDULERS, check_options, shown, warn
from inexact_muon.optim.sources import SavedParameter, is_number, is_ours, keeps_sums, saved_parameters
from inexact_muon.optim.structure import check_structure
from inexact_muon.polar import Auto
from inexact_muon.wrappers import WRAPPERS, bare_name

Loaded = tuple[dict[str, Any], dict[str, Any]]
"""(group, state) of one parameter in a file, with this library's names"""

ALWAYS = {"lmo": ("lr", "momentum", "weight_decay"), "adamw": ("lr", "momentum", "weight_decay", "beta2", "eps")}
"""Algorithm -> options that every supported optimizer saves."""


def matched(optimizer: Groups, saved: Mapping[str, Any]) -> dict[str, Any]:
    """`saved` in the order of the optimizer's groups and parameters, validated; the optimizer is not modified.

    Raises:
        ValueError: a shape differs, an option is out of range, or parameters are ambiguous.
    """
    groups, states = check_structure(saved), saved["state"]
    if not all(map(is_ours, groups)) and not optimizer.ordered:
        raise ValueError(
            "this checkpoint was written by another optimizer, and for_model reorders parameters by their role: load "
            "it with inexact_muon.optim.load_foreign(optimizer, state_dict, names=[...])"
        )
    if any(keeps_sums(group, states) is not False for group in groups):
        raise ValueError(
            "the momentum of the checkpoint is a sum, or may be one (ns_steps without coefficients): load it with "
            "inexact_muon.optim.load_foreign(optimizer, state_dict, sums=True), or False if it is an average"
        )
    parameters = [parameter for group in groups for parameter in saved_parameters(group, states)]
    by_index = _by_index(optimizer, parameters)
    entries = {index: (parameter.group, parameter.state()) for index, parameter in by_index.items()}
    state, laid, others = merged(optimizer, entries, {})
    names = [name for name, *_ in optimizer.named()]
    used = {id(parameter) for parameter in by_index.values()}
    for what, listed in {
        "not in the checkpoint start with empty state": [name for i, name in enumerate(names) if i not in entries],
        "with the state of another algorithm in the checkpoint start with empty state": [
            f"{names[i]} ({entries[i][0]['algorithm']})" for i in others
        ],
        "in the checkpoint but not in the optimizer are dropped": [
            shown(parameter.name or parameter.key) for parameter in parameters if id(parameter) not in used
        ],
    }.items():
        if listed:
            more = f" and {len(listed) - 5} more" if len(listed) > 5 else ""
            warn(f"parameters {what}: {', '.join(listed[:5])}{more}")
    return {**saved, "state": state, "param_groups": laid}


def merged(
    optimizer: Groups, entries: Mapping[int, Loaded], state: dict[Any, Any], partial: bool = False
) -> tuple[dict[Any, Any], list[dict[str, Any]], list[int]]:
    """A state by index and groups, made of `state` and the optimizer's groups, updated with the entries of a file.

    Args:
        entries: index of a parameter -> its group and state in the file.
        partial: options of a group are taken over only if all of its parameters are in the file.

    Returns:
        State, groups, and the indices of parameters whose entry belongs to another algorithm.
    """
    state, groups, others = dict(state), [], []
    parameters = enumerate(optimizer.named())
    for group in optimizer.param_groups:
        indices, sources, used = [], [], False
        for index, (name, p, _) in islice(parameters, len(group["params"])):
            indices.append(index)
            if index not in entries:
                continue
            source, entry = entries[index]
            sources.append(source)
            if entry and not fits(entry, group["algorithm"], p, name):
                others.append(index)
                continue
            used = True
            if entry:
                state[index] = entry
        if partial and len(sources) < len(indices):
            if sources:
                warn(f"options of {group['name']} are kept: the file has only some of its parameters")
            sources, used = [], False
        alike = [source for source in sources if source["algorithm"] == group["algorithm"]]
        groups.append({**options(group, alike, used), "params": indices})
    return state, groups, others


def _by_index(optimizer: Groups, parameters: Sequence[SavedParameter]) -> dict[int, SavedParameter]:
    """Index of a parameter -> its place in the file, by name or else by position."""
    mine = [name for name, *_ in optimizer.named()]
    named = all("param_names" in group for group in optimizer.param_groups)
    if named and parameters and all(parameter.name is not None for parameter in parameters):
        by_name = {str(parameter.name): parameter for parameter in parameters}
        there = partners(mine, list(by_name))
        return {i: by_name[there[name]] for i, name in enumerate(mine) if name in there}
    if not optimizer.ordered and named:
        raise ValueError("the checkpoint has no parameter names: save it from an optimizer that was made by for_model")
    if len(parameters) != len(mine):
        raise ValueError(
            f"the checkpoint has {len(parameters)} parameters without names and the optimizer {len(mine)}: make both "
            "optimizers from named parameters, or from the same ones"
        )
    return dict(enumerate(parameters))


def partners(here: Sequence[str], there: Sequence[str]) -> dict[str, str]:
    """Name of a parameter here -> its name in the file.

    Names of which one side holds those of the other, as they are or after the wrappers in front of all of them, such
    as `module.`, are equal ones. Otherwise equal names, and those that are unique without any wrapper.
    """
    for stripped in _unwrapped(here):
        for names in _unwrapped(there):
            if set(names) <= set(stripped) or set(stripped) <= set(names):
                known = dict(zip(names, there, strict=True))
                return {name: known[x] for name, x in zip(here, stripped, strict=True) if x in known}
    counts = [Counter(map(bare_name, names)) for names in (here, there)]
    by_bare = {bare_name(name): name for name in there}
    unique = [name for name in here if all(count[bare_name(name)] == 1 for count in counts)]
    return {name: by_bare[bare_name(name)] for name in unique} | {name: name for name in set(here) & set(there)}


def _unwrapped(names: Sequence[str]) -> list[list[str]]:
    """The names, and after each wrapper in front of all of them."""
    forms = [list(names)]
    while names and names[0].partition(".")[0] in WRAPPERS:
        first = names[0].partition(".")[0] + "."
        if not all(name.startswith(first) for name in names):
            break
        names = [name.removeprefix(first) for name in names]
        forms.append(list(names))
    return forms


def fits(entry: Mapping[str, Any], algorithm: str, p: Tensor, name: str) -> bool:
    """Whether the state belongs to this algorithm.

    Raises:
        ValueError: it does, but has another shape.
    """
    if any(key not in entry for key in BUFFERS[algorithm]):
        return False
    for key, value in entry.items():
        if not isinstance(value, Tensor | int | float):
            raise ValueError(f"{shown(key)} of {name} is a {type(value).__name__} in the checkpoint, not a tensor")
    for key in BUFFERS[algorithm]:
        buffer = entry[key]
        if not isinstance(buffer, Tensor) or buffer.layout != torch.strided or buffer.is_meta:
            raise ValueError(f"{key} of {name} is not a tensor with its data in the checkpoint")
        if not buffer.dtype.is_floating_point or buffer.dtype.itemsize < 2:
            raise ValueError(f"{key} of {name} is {buffer.dtype} in the checkpoint: buffers are float16 or wider")
        if tuple(buffer.shape) != tuple(p.shape):
            raise ValueError(
                f"{key} of {name} has shape {tuple(buffer.shape)} in the checkpoint and the parameter "
                f"{tuple(p.shape)}: this checkpoint is of another model; nothing was changed"
            )
    return True


def options(mine: Mapping[str, Any], sources: Sequence[Mapping[str, Any]], used: bool) -> dict[str, Any]:
    """Options of a group after loading: scheduled ones from the file, the algorithm as constructed.

    Args:
        sources: the file's groups of the same algorithm.
        used: whether entries of the file are used, possibly from groups of another algorithm.
    """
    result = {key: value for key, value in mine.items() if key != "params"}
    if not sources and used:
        warn(f"options of {mine['name']} are kept: those of the checkpoint belong to another algorithm")
    if not sources:
        return result
    for key in ALGORITHM if mine["algorithm"] == "lmo" else ("maximize", "keep"):
        values = _values(sources, key)
        if key == "ball" and len(values) == 1 and _same_choice(mine["ball"], values[0]):
            result["ball"] = values[0]
        elif not all(_equal(value, mine[key]) for value in values):
            listed = ", ".join(shown(value) for value in values)
            warn(f"checkpoint was made with {key} {listed}; keeping {mine[key]} ({mine['name']})")
    result = {key: value for key, value in result.items() if key not in SCHEDULERS}
    known = {*result, "betas"}  # betas are momentum and beta2 in files of ours: a number of that name is damage
    extra = {key for source in sources for key, value in source.items() if key not in known and is_number(value)}
    for key in (*SCHEDULED, *sorted(extra)):
        values = _values(sources, key)
        if len(values) > 1:
            result |= {key: mine[key]} if key in mine else {}
            listed = ", ".join(shown(value) for value in values)
            warn(
                f"checkpoint has several values of {shown(key)} for {mine['name']} ({listed}); keeping {mine.get(key)}"
            )
        elif values:
            result[key] = _option(key, values[0])
        elif key in ALWAYS[mine["algorithm"]]:
            warn(f"checkpoint has no {key} for {mine['name']}; keeping {mine[key]}")
    if _values(sources, "decay") != [mine["decay"]]:
        result["decay_lr"] = mine["decay_lr"]  # that of the file belongs to its decay
    check_options(result)
    return result


def _option(key: str, value: Any) -> Any:
    """Validate a scheduled option of a file: a number."""
    if not is_number(value) or (key in SCHEDULED and isinstance(value, bool)):
        raise ValueError(f"{shown(key)} of the checkpoint must be a number, got {shown(value)}")
    if key == "turn" and not (isinstance(value, int) and 0 <= value < 2**53):
        raise ValueError(f"turn of the checkpoint must be a count of steps, got {shown(value)}")
    if isinstance(value, int) and abs(value) >= 2**53:
        raise ValueError(f"{shown(key)} of the checkpoint is out of range: {shown(value)}")
    return value


def _values(sources: Iterable[Mapping[str, Any]], key: str) -> list[Any]:
    """The distinct values of an option."""
    values: list[Any] = []
    for source in sources:
        if key in source and not any(_equal(source[key], other) for other in values):
            values.append(source[key])
    return values


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        if not (is_number(a) and is_number(b)):
            return False
        a, b = float(a), float(b)
    return type(a == b) is bool and (a == b or (a != a and b != b))


def _same_choice(mine: str, other: Any) -> bool:
    """Whether both are the same ball up to the choices of polar="auto", and the file's choices meet its bound."""
    if mine == other or not isinstance(other, str):
        return mine == other
    try:
        a = parse(mine)
        if not (isinstance(a, Spectral) and isinstance(a.polar, Auto)):
            return False
        b = parse(other)
    except ValueError:  # the text of a user-defined ball, or invalid
        return False
    return isinstance(b, Spectral) and a.scale == b.scale and a.polar.accepts(b.polar)


def restore_buffers(optimizer: Groups, mapped: Mapping[str, Any]) -> None:
    """Restore state tensors in the dtype they were saved in, which torch would cast; no second moment in float16."""
    params = [p for group in optimizer.param_groups for p in group["params"]]
    for index, entry in mapped["state"].items():
        p = params[index]
        for key, value in entry.items():
            if isinstance(value, Tensor):
                optimizer.state[p][key] = value.detach().clone().to(p.device, buffer_dtype(key, value.dtype))
