"""Whether something is the state_dict of an optimizer, whoever wrote it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from inexact_muon.optim.sources import HEAVYBALL, shown


def check_structure(saved: Any) -> list[dict[str, Any]]:
    """Validate the structure of a state_dict; returns its groups."""
    if not isinstance(saved, Mapping) or "state" not in saved or "param_groups" not in saved:
        keys = f" with {', '.join(map(shown, list(saved)[:5]))}" if isinstance(saved, Mapping) else ""
        raise ValueError(
            f"an optimizer's state_dict has the entries state and param_groups, got {type(saved).__name__}{keys}: pass "
            "what optimizer.state_dict() gave"
        )
    if not isinstance(saved["state"], Mapping) or not isinstance(saved["param_groups"], list | tuple):
        raise ValueError("state must be a dict and param_groups a list: the checkpoint is damaged")
    names: set[str] = set()
    for i, group in enumerate(saved["param_groups"]):
        _check_group(i, group)
        for name in group.get("param_names") or ():
            if name in names:
                raise ValueError(f"the checkpoint has two parameters named {name!r}")
            names.add(name)
    _check_states(saved["state"], saved["param_groups"])
    return [dict(group) for group in saved["param_groups"]]


def _check_group(i: int, group: Any) -> None:
    if not isinstance(group, Mapping) or not all(isinstance(key, str) for key in group):
        raise ValueError(f"parameter group {i} of the checkpoint is not a dict of options by name")
    keys, names = group.get("params"), group.get("param_names")
    if not isinstance(keys, list | tuple) or not all(isinstance(key, int | str) for key in keys):
        raise ValueError(f"parameter group {i} of the checkpoint has no list of parameters")
    if names is None:
        return
    if not isinstance(names, list | tuple) or len(names) != len(keys) or not all(isinstance(n, str) for n in names):
        raise ValueError(f"parameter group {i} of the checkpoint has {len(keys)} parameters and other param_names")


def _check_states(states: Mapping[Any, Any], groups: Sequence[Mapping[str, Any]]) -> None:
    """Refuse states that are not dicts by name."""
    for key, entry in states.items():
        if not isinstance(entry, Mapping) or not all(isinstance(name, str) for name in entry):
            if any("storage_dtype" in group for group in groups):
                raise ValueError(HEAVYBALL)
            raise ValueError(f"the state of parameter {shown(key)} is not a dict by name: the checkpoint is damaged")
