"""Zolotarev's best rational approximation of the sign function, in partial fractions."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from inexact_muon.schedules.design import check_power
from inexact_muon.schedules.elliptic import at_fractions
from inexact_muon.schedules.remez import minimax
from inexact_muon.schedules.scalar_map import Polished, Rational
from inexact_muon.schedules.tilted import tilted


def zolotarev(poles: int = 3, lower: float = 1e-3, *, polish: int = 0, power: float = 0.0) -> Rational | Polished:
    """The rational function of type (2r+1, 2r), r = poles, closest to 1 on [lower, 1]; then a polynomial, if asked.

    With K' = K(1 - l^2) and Jacobi functions of parameter 1 - l^2 (Zolotarev 1877; Nakatsukasa and
    Freund, SIAM Review 58, 2016, section 3):

        c_i  = l^2 sn^2(i K'/(2r+1)) / cn^2(i K'/(2r+1)),   i = 1..2r
        f(s) = scale * s * prod_j (s^2 + c_2j)/(s^2 + c_(2j-1)) = scale * s * (1 + sum_j a_j/(s^2 + c_(2j-1)))

    Its critical points are l / dn(i K'/(2r+1)); scale centres the image at 1.

    Args:
        polish: degree of the minimax polynomial on the image of [lower, 1], which comes after one pole; 0 for none.
            One pole leaves [0.40, 1.60] of [1e-3, 1], from which degree 9 reaches 0.046 and two further poles 0.062.
        power: approximate s^power instead of 1 (`tilted`); a negative one gives small singular values more weight.
    """
    if polish not in (0, 3, 5, 7, 9):
        raise ValueError(f"zolotarev: polish must be 0, 3, 5, 7 or 9, got {polish}")
    if polish and poles != 1:
        raise ValueError(f"zolotarev: polish comes after one pole, got poles={poles}: leave one of the two out")
    power = check_power(power)
    if polish and power:
        raise ValueError(f"zolotarev: polish removes a tilt, got power={power:g}: leave one of the two out")
    if isinstance(poles, bool) or not isinstance(poles, int):
        raise TypeError(f"poles must be an integer, got {poles!r}")
    if not 1 <= poles <= 8:
        raise ValueError(f"poles must lie between 1 and 8, got {poles}")
    if not 1e-7 <= lower < 1.0:
        raise ValueError(f"lower must lie in [1e-7, 1) for a rational method, got {lower}")
    return _polished(lower, polish) if polish else _rational(poles, lower, power)


@lru_cache(maxsize=256)
def _polished(lower: float, degree: int) -> Polished:
    first = _rational(1, lower, 0.0)
    step, _ = minimax(degree, *first.image(lower, 1.0))
    return Polished(lower, f"{first.source}, then minimax of degree {degree}", first, step)


@lru_cache(maxsize=256)
def _rational(poles: int, lower: float, power: float) -> Rational:
    tangent, dn = at_fractions(2 * poles, lower)
    c = (lower * tangent) ** 2
    odd, even = c[0::2], c[1::2]
    if power:
        return tilted(even, odd, lower / dn, lower, power)
    residues = [-np.prod(odd[j] - even) / np.prod(odd[j] - np.delete(odd, j)) for j in range(poles)]
    extrema = tuple(float(x) for x in lower / dn)
    parts = (tuple(map(float, odd)), tuple(map(float, residues)), extrema)
    source = f"Zolotarev, type ({2 * poles + 1}, {2 * poles})"
    low, high = Rational(lower, source, 1.0, *parts).image(lower, 1.0)
    return Rational(lower, source, 2.0 / (low + high), *parts)
