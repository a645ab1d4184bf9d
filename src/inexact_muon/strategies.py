"""Ways to run the oracle on many ranks, as frozen values: `parallel` runs them, `plan` has their cost on paper."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from inexact_muon._text import read, write


@dataclass(frozen=True)
class Strategy:
    """A way to run the oracle.

    Attributes:
        copies: whether plain tensors are copies on every rank of a process group, among which work is divided.
        exact: whether the update is that of one process, up to rounding.
    """

    name: ClassVar[str]
    copies: ClassVar[bool] = False
    exact: ClassVar[bool] = True

    def __str__(self) -> str:
        return write(self)


@dataclass(frozen=True)
class Replicated(Strategy):
    """Every rank gathers every matrix and orthogonalises all of them; nothing comes back."""

    name: ClassVar[str] = "replicated"


@dataclass(frozen=True)
class OwnerRank(Strategy):
    """Each matrix is orthogonalised once, by one rank, the most expensive matrices given out first.

    Pieces travel to the owner, and every holder gets its piece of the answer; a stack of matrices that lie whole on
    their ranks sends nothing. With `copies` plain tensors are divided among the ranks, too.
    """

    name: ClassVar[str] = "owner-rank"
    copies: ClassVar[bool] = True


@dataclass(frozen=True)
class AutoStrategy(OwnerRank):
    """Owner-rank for what is divided; plain tensors are not assumed to be replicated."""

    name: ClassVar[str] = "auto"
    copies: ClassVar[bool] = False


@dataclass(frozen=True)
class GramReduced(Strategy):
    """Where the long side alone is cut, only n x n matrices in float64 travel; the rest as owner-rank."""

    name: ClassVar[str] = "gram-reduced"


@dataclass(frozen=True)
class BlockPeriodic(Strategy):
    """MuonBP (arXiv 2510.16981): pieces are orthogonalised where they lie; every `period`-th step whole matrices are.

    The first step is a whole one. Undivided matrices are whole at every step. Factors by shape are those of the block
    on steps by blocks.

    Attributes:
        period: 1 is Muon.
        block_lr: multiplies lr on steps by blocks, the second of the two step sizes.
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
"""Name -> class, for text only."""


def parse(text: str) -> Strategy:
    """The strategy that a text names: "owner-rank", "block-periodic:4"."""
    return read(text, STRATEGIES)
