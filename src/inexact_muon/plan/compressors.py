"""Compressors of EF21: contractive maps C and what C(x) takes on the wire."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

INDEX = 4
"""Bytes of a position in a matrix."""


@dataclass(frozen=True)
class Compressor(ABC):
    """What C(x) of an n x m matrix costs."""

    @abstractmethod
    def bytes(self, n: int, m: int, size: int) -> float:
        """On the wire, when a number takes `size` bytes; never more than the matrix itself."""

    def flops(self, n: int, m: int) -> int:
        """Of products; selecting and rounding are of lower order."""
        return 0


@dataclass(frozen=True)
class LowRank(Compressor):
    """P Q^T of rank r: r (n + m) numbers; one pass of subspace iteration, two products of 2 n m r."""

    rank: int

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"rank must be at least 1, got {self.rank}")

    def bytes(self, n: int, m: int, size: int) -> float:
        return size * min(self.rank * (n + m), n * m)

    def flops(self, n: int, m: int) -> int:
        return 4 * n * m * min(self.rank, n, m)

    def __str__(self) -> str:
        return f"rank {self.rank}"


@dataclass(frozen=True)
class TopK(Compressor):
    """The largest `share` of the entries: a number and a position (4 bytes) for each, or all of it if smaller."""

    share: float

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"top-k share must lie in (0, 1], got {self.share}")

    def bytes(self, n: int, m: int, size: int) -> float:
        return min(self.share * (size + INDEX), size) * n * m

    def __str__(self) -> str:
        return f"top {self.share:.3g}"


@dataclass(frozen=True)
class Natural(Compressor):
    """Each entry rounded to a power of two: sign and exponent, 9 bits of a float32 or bfloat16 (arXiv 1905.10988)."""

    def bytes(self, n: int, m: int, size: int) -> float:
        return min(9 / 8, size) * n * m

    def __str__(self) -> str:
        return "natural"
