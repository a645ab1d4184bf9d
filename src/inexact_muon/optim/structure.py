"""The state_dict of an optimizer, whoever wrote it: its structure, and the oracle that its groups name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inexact_muon.optim.options import check_ns_steps, shown
from inexact_muon.polar import PolarExpress, PolarMethod, Polynomial, You
from inexact_muon.schedules.published import JORDAN

HEAVYBALL = (
    "the checkpoint is heavyball's: its states are listed by transformation, AdamW's moments have the bias correction "
    "applied, and its Muon steps along g + m; start with an empty state"
)


def check_entries(saved: Any) -> None:
    """Validate that this is the state_dict of an optimizer, not what it contains."""
    if not isinstance(saved, Mapping) or "state" not in saved or "param_groups" not in saved:
        keys = f" with {', '.join(map(shown, list(saved)[:5]))}" if isinstance(saved, Mapping) else ""
        raise ValueError(
            f"an optimizer's state_dict has the entries state and param_groups, got {type(saved).__name__}{keys}: pass "
            "what optimizer.state_dict() gave"
        )


def check_structure(saved: Any) -> list[dict[str, Any]]:
    """Validate the structure of a state_dict; returns its groups."""
    check_entries(saved)
    if not isinstance(saved["state"], Mapping) or not isinstance(saved["param_groups"], list | tuple):
        raise ValueError("state must be a dict and param_groups a list: the checkpoint is damaged")
    names: set[str] = set()
    for i, group in enumerate(saved["param_groups"]):
        check_group(i, group)
        for name in group.get("param_names") or ():
            if name in names:
                raise ValueError(f"the checkpoint has two parameters named {name!r}")
            names.add(name)
    for key, entry in saved["state"].items():
        if not isinstance(entry, Mapping) or not all(isinstance(name, str) for name in entry):
            if any("storage_dtype" in group for group in saved["param_groups"]):
                raise ValueError(HEAVYBALL)
            raise ValueError(f"the state of parameter {shown(key)} is not a dict by name: the checkpoint is damaged")
    return [dict(group) for group in saved["param_groups"]]


def check_group(i: int, group: Any) -> None:
    """Validate the options, parameters and names of one parameter group."""
    if not isinstance(group, Mapping) or not all(isinstance(key, str) for key in group):
        raise ValueError(f"parameter group {i} of the checkpoint is not a dict of options by name")
    keys, names = group.get("params"), group.get("param_names")
    if not isinstance(keys, list | tuple) or not all(isinstance(key, int | str) for key in keys):
        raise ValueError(f"parameter group {i} of the checkpoint has no list of parameters")
    if names is None:
        return
    if not isinstance(names, list | tuple) or len(names) != len(keys) or not all(isinstance(n, str) for n in names):
        raise ValueError(f"parameter group {i} of the checkpoint has {len(keys)} parameters and other param_names")


def iteration(group: Mapping[str, Any]) -> PolarMethod | None:
    """The oracle that `ns_steps` and `ns_coefficients` of a group name; None if it has neither (KellerJordan's).

    Coefficients are those of all steps, a list with those of each, or timm's names.
    """
    if "ns_steps" not in group:
        return None
    steps = check_ns_steps(group["ns_steps"], "ns_steps of the checkpoint")
    coefficients = group.get("ns_coefficients") or group.get("ns_coeffs") or JORDAN
    if isinstance(coefficients, str):
        if coefficients == "polar_express":
            return PolarExpress(steps)
        if coefficients == "quintic" and steps == You().steps:
            return You(steps)
        if coefficients != "original":
            raise ValueError(
                f"ns_coefficients of the checkpoint are {shown(coefficients)}, with {steps} steps: not known here"
            )
        coefficients = JORDAN
    nested = isinstance(coefficients, list | tuple) and coefficients and isinstance(coefficients[0], list | tuple)
    rows = list(coefficients) if nested else [coefficients]
    for row in rows:
        if not isinstance(row, list | tuple) or not all(isinstance(a, int | float) and abs(a) < 1e6 for a in row):
            raise ValueError(f"ns_coefficients of the checkpoint must be numbers, got {shown(coefficients)}")
    return Polynomial(tuple(tuple(rows[min(i, len(rows) - 1)]) for i in range(steps)))
