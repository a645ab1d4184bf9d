"""Statements, and the conditions that all of them share.

Symbols in `theory`: D0 = f(x^0) - f*, or an upper bound; L the smoothness constant of Assumption 2, in the ball's norm;
K iterations; rho_sigma = rho sigma, the noise in the dual norm; gamma the step size; alpha the weight of the new
gradient, m <- (1-alpha) m + alpha g; delta the error of Assumption 1; gap and overshoot the two numbers (eta, nu), or
upper bounds on them over a run; E_k = E||m^{k+1} - grad_k||*, the momentum error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Numbers = float | Sequence[float] | Floats


@dataclass(frozen=True)
class Statement:
    """One function of this package.

    Attributes:
        statement: the formula it computes.
        source: where the paper states it; "ours" for what docs/theory.md proves.
        kind: bound, optimum, count, step, lemma, factor or model.
    """

    name: str
    statement: str
    source: str
    kind: str
    function: Callable[..., Any]


BOUNDS: dict[str, Statement] = {}
"""Name -> statement, source, kind, function."""
F = TypeVar("F", bound=Callable[..., Any])


def statement(source: str, kind: str) -> Callable[[F], F]:
    """Enter a function in BOUNDS and in `__all__` of its module; the formula is the first line of its docstring."""

    def enter(function: F) -> F:
        name = function.__name__.replace("_", "-")
        BOUNDS[name] = Statement(name, (function.__doc__ or "").partition("\n")[0], source, kind, function)
        function.__globals__.setdefault("__all__", []).append(function.__name__)
        return function

    return enter


class Optimum(NamedTuple):
    """A step size and its bound."""

    gamma: float
    bound: float


class StochasticOptimum(NamedTuple):
    """A step size, a momentum weight and their bound."""

    gamma: float
    alpha: float
    bound: float

    @property
    def clipped(self) -> bool:
        """Whether alpha is clipped to 1 (no momentum): the formula gave 1 or more, or there is no noise."""
        return self.alpha >= 1.0


def shown(value: Numbers) -> str:
    """A number, or an abbreviated sequence, for an error message."""
    entries = [f"{x:g}" for x in np.asarray(value, dtype=float).ravel()]
    if np.ndim(value) == 0:
        return str(value)
    return f"[{', '.join(entries if len(entries) < 7 else [*entries[:3], '...', entries[-1]])}]"


Range = tuple[Callable[[Floats], Any], str, str]
"""(condition, the same in words, a hint)"""

POSITIVE: Range = (lambda x: (x > 0.0) & np.isfinite(x), "be positive and finite", "")
RANGES: dict[str, Range] = {
    "rho_sigma": (lambda x: (x >= 0.0) & np.isfinite(x), "be finite and not negative", ""),
    "alpha": (lambda x: (x > 0.0) & (x <= 1.0), "lie in (0, 1]", ": the weight of the new gradient, 1 - momentum"),
}
"""Symbol -> its range; all other symbols are `POSITIVE`."""


def check(**values: Numbers) -> None:
    """Require each value, or all of its entries, to be in the range of its symbol."""
    for name, value in values.items():
        holds, words, hint = RANGES.get(name.removesuffix("s"), POSITIVE)
        entries = np.asarray(value, dtype=float)
        if entries.size == 0 or not np.all(holds(entries)):
            raise ValueError(f"{name} must {words}, got {shown(value)}{hint}")


def check_length(K: int) -> None:
    """Require K <= 1e8 if a sequence of K numbers is made."""
    if K > 1e8:
        raise ValueError(f"K must be at most 1e8 where a sequence of K numbers is made, got {K:g}")


def check_gap(gap: Numbers) -> Floats:
    """Require gap < 1; returns 1 - gap, the share of the descent that the oracle keeps."""
    descent = 1.0 - np.asarray(gap, dtype=float)
    if not np.all(np.isfinite(descent) & (descent > 0.0)):
        raise ValueError(f"gap must be below 1, got {shown(gap)}: at 1 or above d_hat is not a descent direction")
    return descent


def check_oracle(gap: Numbers, overshoot: Numbers, **values: Numbers) -> None:
    """`check` the values, and require gap < 1 and overshoot >= 1 - gap.

    The latter holds since |<m, d_hat>| <= dual_norm(m) norm(d_hat).
    """
    check(**values)
    descent = check_gap(gap)
    check(overshoot=overshoot)
    if not np.all(np.asarray(overshoot, dtype=float) >= descent * (1.0 - 1e-9)):
        raise ValueError(
            f"overshoot {shown(overshoot)} is below 1 - gap for gap {shown(gap)}: "
            "the descent cannot exceed the norm of d_hat"
        )


def worst_pair(delta: Any) -> tuple[Any, Any]:
    """(gap, overshoot) = (delta, 1 + delta), the largest that Assumption 1 allows; raises for delta >= 1."""
    entries = np.asarray(delta, dtype=float)
    if not np.all((entries >= 0.0) & (entries < 1.0)):
        raise ValueError(
            f"delta must lie in [0, 1), got {shown(delta)}: at 1 or above d_hat = 0 is allowed, which never descends, "
            "so no bound can hold"
        )
    value = entries if entries.ndim else float(entries)
    return value, 1.0 + value


def aligned(**sequences: Numbers) -> list[Floats]:
    """The sequences as arrays of one shape; a number is a constant sequence."""
    arrays = [np.asarray(values, dtype=float) for values in sequences.values()]
    shapes = {array.shape for array in arrays if array.ndim}
    if len(shapes) > 1:
        lengths = ", ".join(f"{name} {a.shape}" for name, a in zip(sequences, arrays, strict=True))
        raise ValueError(f"the sequences must have the same length, one entry per step, got {lengths}")
    shape = shapes.pop() if shapes else (1,)
    return [np.broadcast_to(array, shape) for array in arrays]
