"""The cheapest oracle of a required accuracy: the first in a list of candidates, sorted by cost, that reaches it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from numpy.typing import ArrayLike

from inexact_muon.polar._base import FAST_FLOAT16, PolarMethod, at_least
from inexact_muon.polar.polynomial import Cans, Composition, PolarExpress
from inexact_muon.polar.rational import Zolotarev
from inexact_muon.polar.rounding import reached
from inexact_muon.schedules.prices import ACCELERATOR, CPU, Costs

LONGEST = 8
"""Maximum number of steps, or poles, of a candidate."""

LOWERS = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4)
"""Lower ends of the design intervals of candidates if a spectrum is given."""


@dataclass(frozen=True)
class Choice:
    """A method, its cost in n x n x n products on the device of the cost table, and the accuracy that it reaches."""

    method: PolarMethod
    cost: float
    why: str


def cheapest(
    n: int,
    m: int,
    delta: float = 0.065,
    lower: float = 1e-3,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    **more: Any,
) -> PolarMethod:
    """The cheapest method with error at most delta on [lower, 1] for one n x m matrix: the method of `choose`.

    Example:
        >>> str(cheapest(768, 3072, delta=0.065, lower=1e-3))
        'zolotarev(poles=3, dtype=float64)'
        >>> str(cheapest(768, 3072, delta=0.065, lower=1e-3, spread=True))
        'zolotarev(poles=3)'
    """
    return choose(n, m, delta, lower, dtype, device, **more).method


def choose(
    n: int,
    m: int,
    delta: float = 0.065,
    lower: float = 1e-3,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    *,
    spectrum: ArrayLike | None = None,
    gap: float = 0.03,
    overshoot: float = 1.07,
    costs: Costs | None = None,
    among: Sequence[PolarMethod] = (),
    spread: bool = False,
) -> Choice:
    """The cheapest method of a required accuracy, with its cost and the accuracy that it reaches.

    Deterministic: costs come from the shipped table of the device type. In float32 and float64 the error is the
    method's bound plus rounding (`inexact_muon.polar.rounding`); in half precision it is the bound alone, to which
    rounding may add 0.1 (float16) or 0.2 (bfloat16), or eps over the smallest singular value relative to the largest if
    that is more. On a CUDA device of compute capability 7.0 or more the compute dtype is float16, in which the Gram
    form is stable.

    Args:
        dtype: compute dtype. None selects float32 on a CPU, float16 on CUDA from compute capability 7.0 on, and the
            default of the method elsewhere.
        spectrum: singular values. If given, the method is required to have at most this gap and overshoot on them, and
            delta and lower are not used.
        costs: another cost table, for example the result of `calibrate()`.
        among: candidates; by default designs with various numbers of steps, degrees and poles for the interval.
        spread: whether singular values are spread over the interval, so that rounding errors are small; otherwise any
            spectrum within it keeps the promise, such as one large singular value with all others at `lower`.
    """
    if min(n, m) < 1:
        raise ValueError(f"n and m must be at least 1, got {n} and {m}")
    if not 0.0 < delta < 1.0:
        raise ValueError(f"delta must lie in (0, 1), got {delta}")
    if not 0.0 < lower < 1.0:
        raise ValueError(f"lower must lie in (0, 1), got {lower}")
    on_cpu = device is None or torch.device(device).type == "cpu"
    if dtype is None and device is not None and at_least(torch.device(device), FAST_FLOAT16):
        dtype = torch.float16
    half = dtype in (torch.bfloat16, torch.float16) or (dtype is None and not on_cpu)
    table = costs or (CPU if on_cpu else ACCELERATOR)
    best = (float("inf"), "")
    designed = (lower,) if spectrum is None else LOWERS
    offered = among or [method for lower in designed for method in _candidates(lower, half, dtype if half else None)]
    for cost, method in _ordered(n, m, offered, half, dtype, table):
        if spectrum is None:
            wide = method.dtype or dtype or torch.float32
            error = method.error_bound(lower) if half else reached(method, n, m, lower, wide, spread)
            if error <= delta:
                return Choice(method, cost, f"error {error:.3g} <= {delta:g} on [{lower:g}, 1]")
            best = min(best, (error, str(method)))
        else:
            judged = method.judge(spectrum)
            if judged.gap <= gap and judged.overshoot <= overshoot:
                why = f"gap {judged.gap:.3g} <= {gap:g}, overshoot {judged.overshoot:.3g} <= {overshoot:g}"
                return Choice(method, cost, why)
    precision = "half precision" if half else str(dtype or torch.float32).removeprefix("torch.")
    if spectrum is not None:
        raise ValueError(
            f"no candidate reaches gap={gap:g}, overshoot={overshoot:g} in {precision}: increase one of them"
        )
    wider = "" if half or dtype == torch.float64 else ", or pass dtype=torch.float64"
    raise ValueError(
        f"no candidate reaches delta={delta:g} at lower={lower:g} in {precision} with its rounding: {best[1]} "
        f"reaches {best[0]:.2g}; increase delta{wider}"
    )


def _ordered(
    n: int, m: int, offered: Iterable[PolarMethod], half: bool, dtype: torch.dtype | None, costs: Costs
) -> list[tuple[float, PolarMethod]]:
    """Candidates that are stable in the dtype, sorted by cost, then by length of text, which favours fewer steps."""
    stable = (method for method in offered if dtype in (None, *method.dtypes))
    methods = [replace(method, dtype=dtype) if dtype else method for method in stable]
    if not half:  # the direct form is an alternative where the Gram form is used: it costs more and rounds less
        composed = [method for method in methods if isinstance(method, Composition)]
        gram = [method for method in composed if method.runs_gram(n, m, dtype or torch.float32)]
        methods += [replace(method, form="direct") for method in gram]
        if dtype is None:  # float64 where float32 rounds too much in a Gram matrix
            methods += [replace(method, dtype=torch.float64) for method in methods if isinstance(method, Zolotarev)]
    priced = [(costs.of(method, n, m), method) for method in methods]
    return sorted((p for p in priced if p[0] < float("inf")), key=lambda p: (p[0], len(str(p[1])), str(p[1])))


@lru_cache(maxsize=64)
def _candidates(lower: float, half: bool, dtype: torch.dtype | None) -> tuple[PolarMethod, ...]:
    """In half precision quintics; in float16 also with a last step of degree 9, and degree 9 alone (in direct form)."""
    if not half:
        return tuple(_full(lower))
    methods = [PolarExpress(steps, lower=lower) for steps in range(1, LONGEST + 1)]
    if dtype == torch.float16:
        mixed = ((5,) * steps + (9,) for steps in range(1, LONGEST))
        methods += [PolarExpress(len(degrees), lower=lower, degree=degrees) for degrees in mixed]
        methods += [PolarExpress(steps, lower=lower, degree=9) for steps in range(1, 6)]
    return tuple(methods)


def _full(lower: float) -> Iterator[PolarMethod]:
    """Low degrees first and degree 3 at most once: no other order was ever cheaper at the same accuracy."""
    for ninth in range(5):
        for fifth in range(LONGEST + 1 - ninth):
            for third in (0, 1):
                degrees = (3,) * third + (5,) * fifth + (9,) * ninth
                if degrees and len(degrees) <= LONGEST:
                    yield Cans(len(degrees), lower=lower, degree=degrees if len(set(degrees)) > 1 else degrees[0])
    if lower < 1e-7:
        return
    for poles in range(1, LONGEST + 1):
        yield Zolotarev(poles, lower=lower)
    for degree in (3, 5, 9):
        yield Zolotarev(1, lower=lower, polish=degree)
