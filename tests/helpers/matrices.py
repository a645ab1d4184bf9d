"""Matrices with prescribed spectra, seeded: never only randn.

A spectrum is a function n -> n singular values, the largest 1.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from inexact_muon_lab.tune import spectra


def rank_deficient(n: int) -> np.ndarray:
    """The first quarter of a log-uniform spectrum, then zeros."""
    kept = max(1, n // 4)
    return np.concatenate((spectra.log_uniform(kept, 1e-2), np.zeros(n - kept)))


def outlier(n: int) -> np.ndarray:
    """One singular value a hundred times the rest."""
    return np.concatenate(([1.0], 1e-2 * np.linspace(1.0, 0.5, n)[1:]))


SPECTRA: dict[str, Callable[[int], np.ndarray]] = {
    "gaussian": spectra.gaussian,
    "log-uniform-1e-3": spectra.log_uniform,
    "log-uniform-1e-6": lambda n: spectra.log_uniform(n, 1e-6),
    "power-law": spectra.power_law,
    "rank-deficient": rank_deficient,
    "outlier": outlier,
    "orthonormal": np.ones,
}


@lru_cache(maxsize=64)
def orthonormal(rows: int, columns: int, seed: int) -> Tensor:
    """rows x columns (rows >= columns) with orthonormal columns, Haar distributed, float64."""
    generator = torch.Generator().manual_seed(seed)
    q, r = torch.linalg.qr(torch.randn(rows, columns, generator=generator, dtype=torch.float64))
    return q * r.diagonal().sign()


def factors(n: int, m: int, spectrum: str, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """(U, sigma, V^T) in float64 of an n x m matrix with this spectrum."""
    k = min(n, m)
    sigma = torch.from_numpy(np.array(SPECTRA[spectrum](k)))
    return orthonormal(n, k, 2 * seed), sigma, orthonormal(m, k, 2 * seed + 1).mT


@lru_cache(maxsize=64)
def _matrix(n: int, m: int, spectrum: str, seed: int) -> Tensor:
    u, sigma, vh = factors(n, m, spectrum, seed)
    return (u * sigma) @ vh


def matrix(n: int, m: int, spectrum: str, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """U diag(sigma) V^T, a fresh tensor."""
    return _matrix(n, m, spectrum, seed).to(dtype, copy=True)
