"""A warning if a schedule sets one learning rate for parameters of both algorithms."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

from torch import Tensor

from inexact_muon.optim.finite import is_host_readable


class Rates:
    """Notices that the rates of LMO and AdamW groups, which started apart, have become equal. Warns once.

    Attributes:
        apart: whether the rates started apart and no warning was issued yet; a step then compares them.
    """

    def __init__(self) -> None:
        self._first: dict[str, set[float]] = {"lmo": set(), "adamw": set()}
        self.apart = False

    def started(self, algorithm: str, lr: Any) -> None:
        """A group with this rate was added; rates that are on an accelerator are not read."""
        if not isinstance(lr, Tensor) or is_host_readable(lr):
            self._first[algorithm].add(float(f"{float(lr):.6g}"))
        lmo, adamw = self._first["lmo"], self._first["adamw"]
        self.apart = bool(lmo) and bool(adamw) and lmo.isdisjoint(adamw)

    def check(self, lrs: Iterable[Any]) -> None:
        """The rates of all groups at a step, alike in six digits: a tensor may have been rounded to float32."""
        known = [lr for lr in lrs if not isinstance(lr, Tensor) or is_host_readable(lr)]
        rates = {float(f"{float(lr):.6g}") for lr in known}
        if len(rates) != 1 or 0.0 in rates:
            return
        self.apart, lr = False, rates.pop()
        lmo, adamw = (", ".join(f"{rate:g}" for rate in sorted(self._first[name])) for name in ("lmo", "adamw"))
        warnings.warn(
            f"all groups now have lr={lr:g}; those of the LMO started at {lmo}, those of AdamW at {adamw}: a schedule "
            "should multiply each group's own rate (docs: Use it with ..., learning rates)",
            stacklevel=4,
        )
