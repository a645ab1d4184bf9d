"""Compressors of EF21: contractive maps C, ||C(x) - x||^2 <= (1 - a) ||x||^2 with 0 < a <= 1, as frozen values.

`encode` gives the tensors to send, `decode` reconstructs C(x) from them. All are deterministic.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from inexact_muon.polar.scaling import probes


@dataclass(frozen=True)
class Compressor(ABC):
    """A contractive map."""

    name: ClassVar[str]

    @abstractmethod
    def encode(self, x: Tensor) -> list[Tensor]:
        """The tensors to send instead of x."""

    @abstractmethod
    def decode(self, message: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
        """C(x) from the tensors received."""

    @abstractmethod
    def empty(self, like: Tensor) -> list[Tensor]:
        """Receive buffers for the message of a tensor of this shape and dtype."""

    def __call__(self, x: Tensor) -> Tensor:
        """C(x)."""
        return self.decode(self.encode(x), x.shape)


@dataclass(frozen=True)
class Identity(Compressor):
    """C(x) = x: EF21-Muon becomes Muon."""

    name: ClassVar[str] = "identity"

    def encode(self, x: Tensor) -> list[Tensor]:
        return [x]

    def decode(self, message: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
        return message[0].reshape(tuple(shape))

    def empty(self, like: Tensor) -> list[Tensor]:
        return [like.new_empty(like.shape)]


@dataclass(frozen=True)
class TopK(Compressor):
    """The largest `share` of the entries, each sent with a 4-byte index. a >= share."""

    name: ClassVar[str] = "top-k"

    share: float = 0.05

    def __post_init__(self) -> None:
        if not 0.0 < self.share <= 1.0:
            raise ValueError(f"top-k: share must lie in (0, 1], got {self.share}")

    def encode(self, x: Tensor) -> list[Tensor]:
        flat = x.flatten()
        where = flat.abs().topk(self._count(flat), sorted=False).indices
        return [flat[where], where.to(torch.int32)]

    def decode(self, message: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
        values, where = message
        return values.new_zeros(tuple(shape)).flatten().index_put_((where.long(),), values).reshape(tuple(shape))

    def empty(self, like: Tensor) -> list[Tensor]:
        count = self._count(like)
        return [like.new_empty(count), like.new_empty(count, dtype=torch.int32)]

    def _count(self, x: Tensor) -> int:
        return max(1, round(self.share * x.numel())) if x.numel() else 0


@dataclass(frozen=True)
class LowRank(Compressor):
    """P P^T x of rank r, with P from two passes of subspace iteration: r (n + m) numbers.

    Trailing dimensions are flattened. Contractive, since P has orthonormal columns that are not orthogonal to x. x
    itself is sent if r (n + m) is not less than its size.
    """

    name: ClassVar[str] = "low-rank"

    rank: int = 8

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"low-rank: rank must be at least 1, got {self.rank}")

    def encode(self, x: Tensor) -> list[Tensor]:
        matrix = x.flatten(1) if x.ndim > 1 else x[:, None]
        n, m = matrix.shape
        if self._whole(n, m):
            return [x]
        work = torch.promote_types(x.dtype, torch.float32)
        y = matrix.to(work)
        start = y.mT @ (y @ probes(m, self.rank, y))
        basis = torch.linalg.qr(y @ torch.linalg.qr(start)[0])[0]
        return [basis.to(x.dtype), (basis.mT @ y).to(x.dtype)]

    def decode(self, message: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
        return (message[0] if len(message) == 1 else message[0] @ message[1]).reshape(tuple(shape))

    def empty(self, like: Tensor) -> list[Tensor]:
        n, m = like.flatten(1).shape if like.ndim > 1 else (like.numel(), 1)
        if self._whole(n, m):
            return [like.new_empty(like.shape)]
        return [like.new_empty(n, self.rank), like.new_empty(self.rank, m)]

    def _whole(self, n: int, m: int) -> bool:
        return self.rank * (n + m) >= n * m or self.rank > min(n, m)


@dataclass(frozen=True)
class Natural(Compressor):
    """Each entry rounded to the nearest power of two (arXiv 1905.10988, without randomness): 9 bits, sign and exponent.

    |C(x) - x| <= |x|/3, so a >= 8/9. Exponents are those of float32: entries below 2^-126 become zero.
    """

    name: ClassVar[str] = "natural"

    def encode(self, x: Tensor) -> list[Tensor]:
        flat = x.flatten().float()
        mantissa, exponent = torch.frexp(flat.abs())  # mantissa in [1/2, 1): 3/4 is the midpoint of two powers
        code = torch.where(mantissa >= 0.75, exponent + 127, exponent + 126)
        code = torch.where((flat != 0) & (code > 0), code.clamp(max=254), 0)
        bits = torch.nn.functional.pad((flat < 0).to(torch.uint8), (0, -flat.numel() % 8)).view(-1, 8)
        signs = (bits << torch.arange(8, device=x.device, dtype=torch.uint8)).sum(1, dtype=torch.uint8)
        return [code.to(torch.uint8), signs, x.new_empty(0)]  # the empty tensor carries the dtype

    def decode(self, message: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
        code, signs, kind = message
        bits = (signs[:, None] >> torch.arange(8, device=signs.device, dtype=torch.uint8)) & 1
        sign = 1.0 - 2.0 * bits.flatten()[: code.numel()].to(kind.dtype)
        size = torch.where(code > 0, torch.ldexp(torch.ones_like(sign), code.to(torch.int32) - 127), 0.0)
        return (sign * size).reshape(tuple(shape))

    def empty(self, like: Tensor) -> list[Tensor]:
        count = like.numel()
        return [
            like.new_empty(count, dtype=torch.uint8),
            like.new_empty(-(-count // 8), dtype=torch.uint8),
            like.new_empty(0),
        ]


COMPRESSORS: dict[str, type[Compressor]] = {cls.name: cls for cls in (Identity, TopK, LowRank, Natural)}
"""Name -> class, for parsing."""
