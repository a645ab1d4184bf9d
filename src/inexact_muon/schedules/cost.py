"""Floating point operations of one n x m matrix, n <= m after transposing.

A product of an a x b and a b x c matrix counts 2abc. Terms of lower order (norms, additions) are left
out; a symmetric product counts in full because no CPU library exploits the symmetry through torch.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence


def square_products(degree: int) -> int:
    """Products of n x n matrices that h(A) of an odd polynomial s h(s^2) needs once A exists.

    Degree 9 costs what degree 7 does, A^2 (c_2 I + c_3 A + c_4 A^2); from 11 on Horner in A^2.
    """
    return {3: 0, 5: 1, 7: 2, 9: 2}.get(degree, (degree + 1) // 4)


def direct_flops(n: int, m: int, degrees: Sequence[int]) -> int:
    """X <- h(X X^T) X at each step: two rectangular products and those of h."""
    n, m = min(n, m), max(n, m)
    return sum(4 * n * n * m + 2 * n**3 * square_products(d) for d in degrees)


def gram_flops(n: int, m: int, degrees: Sequence[int], restarts: Collection[int] = ()) -> int:
    """R = X X^T once per segment, Q <- Q h(R), R <- h(R) R h(R), then Q X."""
    n, m = min(n, m), max(n, m)
    segments = 1 + len([t for t in restarts if t < len(degrees)])
    squares = sum(3 + square_products(d) for d in degrees) - 3 * segments
    return segments * 4 * n * n * m + 2 * n**3 * squares


def rational_flops(n: int, m: int, poles: int, polish: int = 0) -> int:
    """Gram matrix, a Cholesky factor (n^3/3) and its inverse (2n^3/3) per pole, one product.

    A polynomial of degree `polish` after it takes the new Gram matrix, h of it and a product more.
    """
    n, m = min(n, m), max(n, m)
    more = 2 + square_products(polish) if polish else 0
    return 4 * n * n * m + poles * n**3 + 2 * n**3 * more


def svd_flops(n: int, m: int) -> int:
    """Golub and Van Loan's count for U, S, V by R-SVD, 6 m n^2 + 20 n^3, and the product U V^T."""
    n, m = min(n, m), max(n, m)
    return 6 * m * n * n + 20 * n**3 + 2 * n * n * m
