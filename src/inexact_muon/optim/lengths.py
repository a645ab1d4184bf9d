"""Step length along d_hat, chosen independently of the direction, and the shape factors that multiply it.

The dual norm of m comes with the LMO output: -<m, d_hat> = (1 - gap) dual_norm(m), within a factor 1 +- delta. Shape
factors are one function per published convention; a side of zero counts as one, to avoid a division by zero.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf, sqrt
from typing import ClassVar

import torch
from torch import Tensor

from inexact_muon._text import nearest, read, write


@dataclass(frozen=True)
class Length(ABC):
    """Step length in units of lr, from the radius and the dual norm of the momentum."""

    name: ClassVar[str]
    needs_dual: ClassVar[bool] = True

    @abstractmethod
    def __call__(self, radius: float, dual: Tensor) -> Tensor | float:
        """The factor that multiplies lr * d_hat."""

    __str__ = write


@dataclass(frozen=True)
class Fixed(Length):
    """radius: the LMO step of Muon, Scion, SignSGD and normalised SGD."""

    name: ClassVar[str] = "fixed"
    needs_dual: ClassVar[bool] = False

    def __call__(self, radius: float, dual: Tensor) -> Tensor | float:
        return radius


FIXED = Fixed()


@dataclass(frozen=True)
class Steepest(Length):
    """radius ||m||*: steepest descent in the norm; stochastic spectral descent for the spectral ball."""

    name: ClassVar[str] = "steepest"

    def __call__(self, radius: float, dual: Tensor) -> Tensor | float:
        return radius * dual


@dataclass(frozen=True)
class Clipped(Length):
    """min(||m||*, radius): steepest descent while it is short, the LMO step otherwise (clipped Scion)."""

    name: ClassVar[str] = "clipped"

    def __call__(self, radius: float, dual: Tensor) -> Tensor | float:
        return dual.clamp(max=radius)


@dataclass(frozen=True)
class Smooth(Length):
    """radius (1-delta) ||m||* / ((L0 + L1 ||m||*) (1+delta)^2), with lr = radius = 1 the paper's adaptive steps.

    l1 = 0: the adaptive step size theorem, and with one l0 per group the layer-wise one; both: the (L0, L1) theorem;
    delta = 0: Gluon (arXiv 2505.13416). The theorems are deterministic: momentum 0, full gradients.
    """

    name: ClassVar[str] = "smooth"

    l0: float
    l1: float = 0.0
    delta: float = 0.0

    def __post_init__(self) -> None:
        if not (0.0 <= self.l0 < inf and 0.0 <= self.l1 < inf and self.l0 + self.l1 > 0.0):
            raise ValueError(
                f"smooth: l0 and l1 must be finite and not negative, nor both zero, got {self.l0} and {self.l1}"
            )
        if not 0.0 <= self.delta < 1.0:
            raise ValueError(f"smooth: delta must lie in [0, 1), got {self.delta}")

    def __call__(self, radius: float, dual: Tensor) -> Tensor | float:
        dual = dual.clamp(max=torch.finfo(dual.dtype).max / (1.0 + self.l1))  # avoids inf/inf if it overflows
        tiny = (dual == 0).to(dual.dtype)  # avoids 0/0 if l0 = 0 and the gradient is zero
        return radius * (1.0 - self.delta) / (1.0 + self.delta) ** 2 * dual / (self.l0 + self.l1 * dual + tiny)


LENGTHS: dict[str, type[Length]] = {length.name: length for length in (Fixed, Steepest, Clipped, Smooth)}
"""Name -> class, for parsing."""


def parse(text: str) -> Length:
    """Parse a length: "clipped", "smooth(l0=0.1, l1=3.0)"."""
    return read(text, LENGTHS)


def none(fan_out: int, fan_in: int) -> float:
    """1."""
    return 1.0


def original(fan_out: int, fan_in: int) -> float:
    """sqrt(max(1, out/in)): KellerJordan's Muon and torch's default."""
    return sqrt(max(1.0, fan_out / max(1, fan_in)))


def match_rms_adamw(fan_out: int, fan_in: int) -> float:
    """0.2 sqrt(max(out, in)): entries of the update have the RMS of AdamW's (Moonlight, arXiv 2502.16982)."""
    return 0.2 * sqrt(max(fan_out, fan_in))


def spectral(fan_out: int, fan_in: int) -> float:
    """sqrt(out/in): unit RMS -> RMS operator norm, the same at every width (Scion, muP)."""
    return sqrt(fan_out / max(1, fan_in))


SCALES: dict[str, Callable[[int, int], float]] = {
    function.__name__: function for function in (none, original, match_rms_adamw, spectral)
}
"""Name in a parameter group -> function."""

SPECTRAL = (
    'scale "spectral" is sqrt(out/in) here and in dion; Emerging-Optimizers and Megatron call that unit_rms_norm, and '
    'their "spectral" is sqrt(max(out, in)), which is "match_rms_adamw" here with five times the lr'
)
ELSEWHERE = {
    "shape_scaling": "original",
    "unit_rms_norm": "spectral",
    "spectral_norm": "spectral",
    "rms_norm": "match_rms_adamw",
}
"""Names of Emerging-Optimizers, Megatron and dion -> ours."""


def conventions(names: Iterable[str]) -> tuple[str, ...]:
    """What names in use mean elsewhere, where that differs."""
    return (f"{SPECTRAL}.",) if "spectral" in names else ()


def unknown_scale(name: str) -> str:
    """An error message: the name here of one from elsewhere, the known names, and the one that differs."""
    ours = f"{name!r} of other libraries is {ELSEWHERE[name]!r} here; " if name in ELSEWHERE else ""
    return f"unknown scale {name!r}: {ours}{nearest(name, SCALES)}; {SPECTRAL}"
