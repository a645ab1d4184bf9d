"""Jacobi's elliptic functions for a modulus close to 1, by the arithmetic-geometric mean."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def at_fractions(count: int, lower: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(sn/cn, dn) at i K/(count + 1), i = 1..count, for the parameter 1 - lower^2 (DLMF 22.20(ii)).

    a_0 = 1, b_0 = lower; phi_N = 2^N a_N u, sin(2 phi_(n-1) - phi_n) = c_n/a_n sin(phi_n), K = pi/(2 a_N). Beyond K/2
    cn is the small difference of large numbers: there sn/cn(K - u) = 1/(lower sn/cn(u)) and dn(K - u) = lower/dn(u).
    """
    a, b, ratios = 1.0, lower, list[float]()
    while not ratios or abs(ratios[-1]) > np.finfo(float).eps:
        ratios.append((a - b) / (a + b))  # c/a of the next pair
        a, b = (a + b) / 2.0, (a * b) ** 0.5
    first = np.arange(1, count // 2 + 1) / (count + 1)
    phi = upper = 2.0 ** len(ratios) * first * np.pi / 2.0
    for ratio in reversed(ratios):
        upper, phi = phi, (phi + np.arcsin(np.clip(ratio * np.sin(phi), -1.0, 1.0))) / 2.0
    tangent, dn = np.tan(phi), np.cos(phi) / np.cos(upper - phi)
    middle = count % 2  # at K/2: sn/cn = 1/sqrt(lower), dn = sqrt(lower)
    return (
        np.concatenate((tangent, [lower**-0.5] * middle, 1.0 / (lower * tangent[::-1]))),
        np.concatenate((dn, [lower**0.5] * middle, lower / dn[::-1])),
    )
