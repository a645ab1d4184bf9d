"""Strategies to run the oracle on many ranks, as frozen values: run by `parallel`, priced by `plan`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from inexact_muon._text import read, write


@dataclass(frozen=True)
class Strategy:
    """How ranks share the oracle's work.

    Attributes:
        copies: whether plain tensors are replicas on every rank of a process group, among which work is divided.
        exact: whether the update equals that of one process, up to rounding.
    """

    name: ClassVar[str]
    copies: ClassVar[bool] = False
    exact: ClassVar[bool] = True

    def __str__(self) -> str:
        return write(self)


@dataclass(frozen=True)
class Replicated(Strategy):
    """Every rank gathers and orthogonalises every matrix; results are not sent."""

    name: ClassVar[str] = "replicated"


@dataclass(frozen=True)
class OwnerRank(Strategy):
    """Each matrix is orthogonalised once, by one rank; the most expensive matrices are assigned first.

    Pieces are gathered on the owner, and the direction is scattered to all holders; matrices that are whole on their
    ranks (in a divided stack) are not sent. With `copies`, plain tensors are divided among the ranks as well.
    """

    name: ClassVar[str] = "owner-rank"
    copies: ClassVar[bool] = True


@dataclass(frozen=True)
class AutoStrategy(OwnerRank):
    """Owner-rank for sharded parameters; plain tensors are not assumed to be replicated."""

    name: ClassVar[str] = "auto"
    copies: ClassVar[bool] = False


@dataclass(frozen=True)
class GramReduced(Strategy):
    """If exactly the long side is divided, only n x n float64 matrices are sent; otherwise as owner-rank."""

    name: ClassVar[str] = "gram-reduced"


@dataclass(frozen=True)
class BlockPeriodic(Strategy):
    """MuonBP (arXiv 2510.16981): each rank orthogonalises its piece; every `period`-th step uses whole matrices.

    The first step uses whole matrices, and undivided matrices are always whole. On blockwise steps, shape factors are
    those of the block.

    Attributes:
        period: 1 is Muon.
        block_lr: multiplies lr on blockwise steps, the second of the two step sizes.
    """

    name: ClassVar[str] = "block-periodic"
    exact: ClassVar[bool] = False

    period: int = 5
    block_lr: float = field(default=1.0, kw_only=True)

    def __post_init__(self) -> None:
        if isinstance(self.period, bool) or not isinstance(self.period, int) or self.period < 1:
            raise ValueError(f"block-periodic: period must be an integer of at least 1, got {self.period!r}")
        if not 0.0 <= self.block_lr < float("inf"):
            raise ValueError(f"block-periodic: block_lr must be finite and not negative, got {self.block_lr}")


STRATEGIES: dict[str, type[Strategy]] = {
    cls.name: cls for cls in (AutoStrategy, Replicated, OwnerRank, GramReduced, BlockPeriodic)
}
"""Name -> class, for parsing."""


def parse(text: str) -> Strategy:
    """Parse a strategy: "owner-rank", "block-periodic:4"."""
    return read(text, STRATEGIES)
