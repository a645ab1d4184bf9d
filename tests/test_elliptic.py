"""Jacobi's functions at fractions of the quarter period, against scipy where it is accurate, and their identities."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import ellipj, ellipkm1

from inexact_muon.schedules.rational import at_fractions


@pytest.mark.parametrize("lower", [0.9, 0.3, 1e-2, 1e-3, 1e-5, 1e-7])
@pytest.mark.parametrize("count", [1, 2, 3, 6, 16])
def test_against_scipy(count: int, lower: float) -> None:
    tangent, dn = at_fractions(count, lower)
    u = np.arange(1, count + 1) / (count + 1) * float(ellipkm1(lower**2))
    first = u <= u[-1] / 2.0  # beyond it scipy loses the digits of cn
    sn, cn, theirs, _ = ellipj(u, 1.0 - lower**2)
    assert np.allclose(tangent[first], (sn / cn)[first], rtol=1e-8, atol=0.0)
    assert np.allclose(dn[first], theirs[first], rtol=1e-8, atol=0.0)


@pytest.mark.parametrize("lower", [0.9, 0.3, 1e-2, 1e-3, 1e-5, 1e-7])
def test_identities(lower: float) -> None:
    """dn^2 = cn^2 + lower^2 sn^2 and the reflection at K/2."""
    tangent, dn = at_fractions(16, lower)
    assert np.allclose(dn**2 * (1.0 + tangent**2), 1.0 + (lower * tangent) ** 2, rtol=1e-12, atol=0.0)
    assert np.allclose(tangent * tangent[::-1], 1.0 / lower, rtol=1e-13)
