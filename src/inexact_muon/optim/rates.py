"""A warning if a schedule sets one learning rate for parameters of both algorithms."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from inexact_muon.optim.finite import is_host_readable

FLOOR = 0.01
"""Rates below this fraction of all that a run started with are no reason to warn: a schedule that has ended there, such
as cosine annealing to one `eta_min`."""


class Rates:
    """Notices that the rates of LMO and AdamW groups, which started apart, have become equal. Warns once.

    Attributes:
        apart: whether the rates started apart and no warning was issued yet; a step then compares them.
        compared: the rates that were compared last.
    """

    def __init__(self) -> None:
        self._first: dict[str, set[float]] = {"lmo": set(), "adamw": set()}
        self.apart = self._warned = False
        self.compared: list[Any] = []

    def started(self, algorithm: str, lr: Any) -> None:
        """A group with this rate was added; rates that are on an accelerator are not read."""
        if not isinstance(lr, Tensor) or is_host_readable(lr):
            self._first[algorithm].add(float(f"{float(lr):.6g}"))
        lmo, adamw = self._first["lmo"], self._first["adamw"]
        self.apart = not self._warned and bool(lmo) and bool(adamw) and lmo.isdisjoint(adamw)

    def check(self, groups: Sequence[dict[str, Any]]) -> None:
        """Compare the rates of both algorithms at a step, in six digits: float32 may round them.

        Groups may differ among themselves, as with a decay from layer to layer, and some of one algorithm may be apart.
        """
        self.compared = [group["lr"] for group in groups]
        now: dict[str, set[Any]] = {"lmo": set(), "adamw": set()}
        for group in groups:
            now[group["algorithm"]].add(group["lr"])
        lmo, adamw = map(_read, now.values())
        shared, first = lmo & adamw, min(*self._first["lmo"], *self._first["adamw"])
        if shared not in (lmo, adamw) or max(shared, default=0.0) <= FLOOR * first:
            return
        self.apart, self._warned = False, True
        rates, own, other = (
            ", ".join(f"{rate:g}" for rate in sorted(lrs)) for lrs in (shared, self._first["lmo"], self._first["adamw"])
        )
        who = "all groups" if lmo == adamw else "groups of both algorithms"
        warnings.warn(
            f"{who} now have lr={rates}; those of the LMO started at {own}, those of AdamW at {other}: a schedule "
            "should multiply each group's own rate (docs: Use it with ..., learning rates)",
            stacklevel=4,
        )


def _read(lrs: Iterable[Any]) -> set[float]:
    """Rates in six digits; those on an accelerator are not read."""
    known = (lr for lr in lrs if not isinstance(lr, Tensor) or is_host_readable(lr))
    return {float(f"{float(lr):.6g}") for lr in known}
