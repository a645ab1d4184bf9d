"""Statements, and the range of each symbol.

Symbols in `theory`: D0 = f(x^0) - f*, or an upper bound; L the smoothness constant of Assumption 2, in the ball's norm;
K iterations; rho_sigma = rho sigma, the noise in the dual norm; gamma the step size; alpha the weight of the new
gradient, m <- (1-alpha) m + alpha g; delta the error of Assumption 1; gap and overshoot the two numbers (eta, nu), or
upper bounds on them over a run; E_k = E||m^{k+1} - grad_k||*, the momentum error.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from math import inf
from typing import Any, NamedTuple, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Numbers = float | Sequence[float] | Floats
P = ParamSpec("P")
R = TypeVar("R")


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

Range = tuple[Callable[[Floats], Any], str]
"""(condition, the same in words); {name} is the argument's name, {value} what it is."""

POSITIVE: Range = (lambda x: (x > 0.0) & (x < inf), "{name} must be positive and finite, got {value}")
RANGES: dict[str, Range] = {
    **dict.fromkeys(("D0", "L", "K", "gamma", "eps", "overshoot", "dual", "sigma", "kappa", "Lambda"), POSITIVE),
    "rho_sigma": (lambda x: (x >= 0.0) & (x < inf), "{name} must be finite and not negative, got {value}"),
    "alpha": (
        lambda x: (x > 0.0) & (x <= 1.0),
        "{name} must lie in (0, 1], got {value}: the weight of the new gradient, 1 - momentum",
    ),
    "delta": (
        lambda x: (x >= 0.0) & (x < 1.0),
        "delta must lie in [0, 1), got {value}: at 1 or above d_hat = 0 is allowed, which never descends, "
        "so no bound can hold",
    ),
    "gap": (
        lambda x: (x < 1.0) & (x > -inf),
        "gap must be below 1, got {value}: at 1 or above d_hat is not a descent direction",
    ),
}
"""Symbol -> the range of its values; other symbols may have any."""


def statement(source: str, kind: str, **ranges: Range) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Enter a function in BOUNDS and in `__all__` of its module, and check its arguments by their names.

    The formula is the first line of the docstring. `ranges` are those that differ from RANGES.
    """

    def enter(function: Callable[P, R]) -> Callable[P, R]:
        signature, known = inspect.signature(function), RANGES | ranges

        @wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            check(bound.arguments, known)
            return function(*args, **kwargs)

        name = function.__name__.replace("_", "-")
        BOUNDS[name] = Statement(name, (function.__doc__ or "").partition("\n")[0], source, kind, checked)
        function.__globals__.setdefault("__all__", []).append(function.__name__)
        return checked

    return enter


def check(values: Mapping[str, Any], ranges: Mapping[str, Range]) -> None:
    """Require each value, or all of its entries, to be in the range of its symbol, and overshoot >= 1 - gap.

    The latter holds since |<m, d_hat>| <= dual_norm(m) norm(d_hat). The symbol of "gammas" and "gamma_previous" is
    "gamma".
    """
    for name, value in values.items():
        symbol = name if name in ranges else name.removesuffix("_previous").removesuffix("s")
        if symbol in ranges:
            holds, words = ranges[symbol]
            entries = np.asarray(value, dtype=float)
            if entries.size == 0 or not holds(entries).all():
                raise ValueError(words.format(name=name, value=shown(value)))
    gap, overshoot = (values.get(key, values.get(f"{key}s")) for key in ("gap", "overshoot"))
    if gap is None or overshoot is None:
        return
    if not np.all(np.asarray(overshoot, dtype=float) >= (1.0 - np.asarray(gap, dtype=float)) * (1.0 - 1e-9)):
        raise ValueError(
            f"overshoot {shown(overshoot)} is below 1 - gap for gap {shown(gap)}: "
            "the descent cannot exceed the norm of d_hat"
        )


def check_length(K: int) -> None:
    """Require K <= 1e8 if a sequence of K numbers is made."""
    if K > 1e8:
        raise ValueError(f"K must be at most 1e8 where a sequence of K numbers is made, got {K:g}")


def shown(value: Numbers) -> str:
    """A number, or an abbreviated sequence, for an error message."""
    entries = [f"{x:g}" for x in np.asarray(value, dtype=float).ravel()]
    if np.ndim(value) == 0:
        return str(value)
    return f"[{', '.join(entries if len(entries) < 7 else [*entries[:3], '...', entries[-1]])}]"


def worst_pair(delta: Any) -> tuple[Any, Any]:
    """(gap, overshoot) = (delta, 1 + delta), the largest that Assumption 1 allows."""
    value = np.asarray(delta, dtype=float) if np.ndim(delta) else float(delta)
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
