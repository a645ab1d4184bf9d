"""Models of delta (Appendix A) and of rho (norm compatibility)."""

from __future__ import annotations

from math import ceil, log, log1p, sqrt

from inexact_muon._text import nearest
from inexact_muon_lab.theory._base import Range, statement

LOWER: Range = (
    lambda x: (x > 0.0) & (x <= 1.0),
    "{name} must lie in (0, 1], got {value}: the smallest singular value after normalisation",
)
DEGREE: Range = (lambda x: (x >= 3) & (x % 2 == 1), "{name} must be odd and at least 3, got {value}")
STEPS: Range = (lambda x: (x >= 0) & (x % 1 == 0), "{name} must be a whole number, not negative, got {value}")
OPEN: Range = (lambda x: (x > 0.0) & (x < 1.0), "{name} must lie in (0, 1), got {value}")


@statement("Appendix A", "model", lower=LOWER, steps=STEPS, degree=DEGREE)
def polar_express_error(lower: float, steps: int, degree: int = 5) -> float:
    """delta <= (1 - l^2)^((q+1)^p) for p steps of degree 2q+1 on singular values in [l, 1].

    Appendix A, after Theorem 4.3 of arXiv 2505.16932. Correction: the paper calls 2q+1 the number of iterations; it is
    the degree of the polynomial, p is the number of steps. The best polynomials do better than this: `error_bound` of a
    polar method computes the value itself.
    """
    return float((1.0 - lower**2) ** (((degree + 1) / 2) ** steps))


@statement("Appendix A", "model", delta=OPEN, lower=LOWER, degree=DEGREE)
def polar_express_steps(delta: float, lower: float, degree: int = 5) -> int:
    """The smallest p with (1 - l^2)^((q+1)^p) <= delta.

    Appendix A, solved for the number of steps.
    """
    if lower == 1.0:
        return 0
    powers = log(delta) / log1p(-(lower**2))
    return max(0, ceil(log(powers) / log((degree + 1) / 2) - 1e-12))


RHO = {
    "spectral": lambda n, m: sqrt(min(n, m)),
    "sign": lambda n, m: sqrt(n * m),
    "euclidean": lambda n, m: 1.0,
    "col-norm": lambda n, m: sqrt(m),
    "row-norm": lambda n, m: sqrt(n),
    "nuclear": lambda n, m: 1.0,
}
"""Ball -> rho of an n x m matrix."""


@statement("Assumption 3", "model")
def rho(ball: str, n: int, m: int) -> float:
    """The smallest rho with dual_norm(v) <= rho ||v||_2 for n x m matrices, by the ball's name.

    Norm compatibility (after Assumption 3). Correction: the dual of the spectral norm is the nuclear norm, so that
    rho = sqrt(min(n, m)); the paper's remark after Corollary 1 takes the spectral norm for its own dual.
    """
    if ball not in RHO:
        raise ValueError(f"unknown ball {ball!r}: {nearest(ball, RHO)}")
    if n < 1 or m < 1:
        raise ValueError(f"n and m must be at least 1, got {n} and {m}")
    return float(RHO[ball](n, m))
