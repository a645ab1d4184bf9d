"""`auto`: a polar method that chooses an oracle by shape and device, and stores its choices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

import torch
from torch import Tensor

from inexact_muon._text import nearest
from inexact_muon.polar._base import PolarMethod
from inexact_muon.polar.batching import LIMIT
from inexact_muon.polar.polynomial import PolarExpress
from inexact_muon.schedules.prices import Operation
from inexact_muon.schedules.scalar_map import ScalarMap

AUTO_TARGET = "accurate"
"""Target of plain `auto`; changed only on the evidence of a study."""


@dataclass(frozen=True)
class AutoTarget:
    """Arguments of `cheapest`: error at most delta on [lower, 1], among these oracles, () for its own candidates."""

    delta: float
    lower: float
    among: Callable[[], tuple[PolarMethod, ...]] = tuple


@lru_cache(maxsize=1)
def trained() -> tuple[PolarMethod, ...]:
    """Cheap oracles with a final loss no higher than the exact one's in some study, not in all (docs/which-oracle.md).

    One pole was better in GPTs of four layers, not in those of two, and much worse in a conv net. Three steps of degree
    9 were as good as the exact oracle in every GPT tried; four quintics in all but one.
    """
    from inexact_muon.polar.rational import Zolotarev

    lower = 3e-3
    return Zolotarev(1, lower), PolarExpress(4, lower), PolarExpress(3, lower, degree=9)


TARGETS: dict[str, AutoTarget] = {"accurate": AutoTarget(0.065, 1e-3), "fast": AutoTarget(0.5, 3e-3, trained)}
"""Word after "auto:" -> target."""

Key = tuple[int, int, str]
"""(short side, long side, device type)"""


@dataclass(frozen=True)
class Auto(PolarMethod):
    """`cheapest` for each shape and device type, decided once, for spectra that are spread over the interval.

    With one large singular value and all others at its lower end, rounding in float32 was found to add up to 0.05.

    An optimizer resolves it at its first step, so that a model may be moved to its device after the optimizer was
    created. The choices are stored in `chosen`, in the text of the parameter group and in checkpoints.

    Attributes:
        target: one of `TARGETS`: "accurate", or "fast", the cheapest that trains no worse.
        chosen: (short side, long side, device type, method) of every resolved shape.
    """

    name: ClassVar[str] = "auto"

    target: str = AUTO_TARGET
    chosen: tuple[tuple[int, int, str, PolarMethod], ...] = ()

    def __post_init__(self) -> None:
        if self.target not in TARGETS:
            raise ValueError(f"auto: unknown target {self.target!r}: {nearest(self.target, TARGETS)}")
        if self.dtype is not None or self.form != "auto" or self.normalise != "auto":
            raise ValueError("auto: dtype, form and normalise are part of the choice: name an oracle to set them")
        for row in self.chosen:
            if len(row) != 4 or not isinstance(row[3], PolarMethod) or isinstance(row[3], Auto):
                raise ValueError(f"auto: chosen must hold (short side, long side, device, method), got {row!r}")

    @property
    def short(self) -> str:
        """The text without the choices: "auto", "auto:fast"."""
        return self.name if self.target == AUTO_TARGET else f"{self.name}:{self.target}"

    @property
    def map(self) -> ScalarMap:
        raise ValueError("auto has no map before its shape is known: use auto.at(n, m), or name an oracle")

    def known(self, n: int, m: int, device: torch.device | str | None = None) -> PolarMethod | None:
        """The method chosen for this shape and device; None if none is chosen yet."""
        requested = key(n, m, device)
        return next((method for *place, method in self.chosen if tuple(place) == requested), None)

    def at(self, n: int, m: int, device: torch.device | str | None = None) -> PolarMethod:
        from inexact_muon.polar.choice import cheapest

        short, long, kind = key(n, m, device)
        target = TARGETS[self.target]
        return self.known(n, m, device) or cheapest(
            short, long, target.delta, target.lower, device=kind, among=target.among(), spread=True
        )

    def resolved(self, keys: Iterable[Key]) -> Auto:
        """A copy with a choice for each of these keys; earlier choices are kept."""
        known = {row[:3] for row in self.chosen}
        new = [k for k in dict.fromkeys(keys) if k not in known]
        return replace(self, chosen=(*self.chosen, *((*k, self.at(*k)) for k in new))) if new else self

    def accepts(self, other: PolarMethod) -> bool:
        """Whether `other` may result from resolving this: the same target, and each choice within its error bound."""
        if not isinstance(other, Auto) or other.target != self.target:
            return False
        target = TARGETS[self.target]
        return all(method.error_bound(target.lower) <= target.delta for *_, method in other.chosen)

    def operations(self, n: int, m: int, device: str = "cpu") -> tuple[Operation, ...]:
        return self.at(n, m, "cpu" if device == "cpu" else "cuda").operations(n, m, device)

    def only(self, shapes: Sequence[tuple[int, int]], like: Tensor) -> PolarMethod:
        chosen = {self._method_for(like.new_empty(()).expand(*shape)) for shape in shapes}
        return chosen.pop() if len(chosen) == 1 else self

    def compute_dtype(self, m: Tensor) -> torch.dtype:
        return self._method_for(m).compute_dtype(m)

    def _method_for(self, m: Tensor) -> PolarMethod:
        """The method for m; float64 input is computed in float64, whatever the dtype of the choice."""
        method = self.at(m.shape[-2], m.shape[-1], m.device)
        return replace(method, dtype=None) if m.dtype == torch.float64 else method

    def orthogonalise_all(self, ms: Sequence[Tensor], limit: int = LIMIT, cast: bool = True) -> list[Tensor]:
        methods = [self._method_for(m) if m.numel() else None for m in ms]
        results: dict[int, Tensor] = {i: m.clone() for i, m in enumerate(ms) if methods[i] is None}
        for method in dict.fromkeys(method for method in methods if method is not None):
            indices = [i for i, other in enumerate(methods) if other == method]
            results.update(zip(indices, method.orthogonalise_all([ms[i] for i in indices], limit, cast), strict=True))
        return [results[i] for i in range(len(ms))]

    def solve(self, xs: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
        raise NotImplementedError("auto has no solve of its own: use auto.at(n, m).solve")


def key(n: int, m: int, device: Any = None) -> Key:
    """Key of the choice for n x m matrices on a device."""
    return min(n, m), max(n, m), "cpu" if device is None else torch.device(device).type
