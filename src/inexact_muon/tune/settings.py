"""What a controller has chosen for each layer, and the same as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from inexact_muon.polar import PolarMethod
from inexact_muon.schedules.grammar import write
from inexact_muon.tune.rules import Factors


@dataclass(frozen=True)
class Setting:
    """What a layer gets: its oracle, and the factors on lr and alpha if there is a reference."""

    oracle: PolarMethod
    factors: Factors | None = None


def to_rows(settings: Mapping[str, Setting]) -> dict[str, dict[str, Any]]:
    """By layer: the oracle's text with every field, and the factors on lr and alpha, or None."""
    return {
        name: {
            "oracle": write(setting.oracle, full=True),
            "lr": None if setting.factors is None else setting.factors.lr,
            "alpha": None if setting.factors is None else setting.factors.alpha,
        }
        for name, setting in settings.items()
    }


def from_rows(state: Any) -> dict[str, tuple[str, Factors | None]]:
    """(text of the oracle, factors) of each layer in the state of a controller.

    Raises:
        ValueError: it is none.
    """
    found = {}
    try:
        for name, row in state["layers"].items():
            given = row["lr"], row["alpha"]
            factors = None if given == (None, None) else Factors(*map(float, given))
            if not isinstance(row["oracle"], str) or not all(0.0 < factor < inf for factor in factors or ()):
                raise ValueError
            found[str(name)] = (row["oracle"], factors)
        _ = state["due"], state["rule"], state["reference"]
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ValueError("this is not a controller's state: pass what control.state_dict() gave") from None
    return found
