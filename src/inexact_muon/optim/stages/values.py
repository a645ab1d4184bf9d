"""Stages: what happens to the LMO's input before the oracle, and to its answer after it.

A stage is a frozen value. Its state is in the optimizer's state of each parameter, under the names of `state`: entries
as the momentum (and sharded as it is), or a number for each row. Which ranks hold what, parameters that are skipped and
checkpoints are not its business.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from inexact_muon._text import write
from inexact_muon.optim.stages.pieces import Pieces
from inexact_muon.optim.stages.places import Side

Extent = Literal["entries", "rows", "longer", "matrices"]
"""What a state tensor has a number for."""


@dataclass(frozen=True)
class Stage(ABC):
    """Base class of `Before` and `After`."""

    name: ClassVar[str]
    state: ClassVar[Mapping[str, Extent]] = {}

    @property
    def extents(self) -> Mapping[str, Extent]:
        """`state`, unless it depends on the fields."""
        return self.state

    def __str__(self) -> str:
        return write(self)


@dataclass(frozen=True)
class Before(Stage):
    """Changes the LMO's input, entry by entry. Its state, if any, is one tensor of entries."""

    @abstractmethod
    def __call__(self, m: Tensor, moment: Tensor | None) -> Tensor:
        """The LMO input from the momentum and the new state, if any, of several parameters."""

    def moment(self, g: Tensor, old: Tensor) -> Tensor:
        """The new state from the gradient and the old state."""
        raise NotImplementedError(f"{self.name} names a state: define moment(g, old)")


@dataclass(frozen=True)
class After(Stage):
    """Changes the oracle's answers."""

    @abstractmethod
    def __call__(self, z: Pieces) -> None:
        """Change the answers in z."""


def check_beta(stage: Stage, beta2: float, eps: float) -> None:
    """Validate the weight of an old average and the term of its denominator."""
    if not 0.0 <= beta2 < 1.0:
        raise ValueError(f"{stage.name}: beta2 must lie in [0, 1), got {beta2}")
    if not 0.0 <= eps < 1.0:
        raise ValueError(f"{stage.name}: eps must lie in [0, 1), got {eps}")


@dataclass(frozen=True)
class SecondMoment(Before):
    """Muon^2 (arXiv 2604.09967): v <- beta2 v + (1 - beta2) g^2, and m / (sqrt(v) + eps) goes to the oracle.

    v starts at zero. Its correction is a factor, which an LMO does not see.
    """

    name: ClassVar[str] = "second-moment"
    state: ClassVar[Mapping[str, Extent]] = {"second_moment": "entries"}

    beta2: float = 0.95
    eps: float = 1e-8

    def __post_init__(self) -> None:
        check_beta(self, self.beta2, self.eps)

    def moment(self, g: Tensor, old: Tensor) -> Tensor:
        # Squares of large finite numbers overflow, and infinity less infinity would be NaN.
        return torch.lerp(old, g.square().clamp_(max=torch.finfo(g.dtype).max), 1.0 - self.beta2)

    def __call__(self, m: Tensor, moment: Tensor | None) -> Tensor:
        assert moment is not None
        # With eps = 0 an entry that never had a gradient is 0/0.
        return m / moment.sqrt().add_(self.eps or torch.finfo(moment.dtype).tiny)


@dataclass(frozen=True)
class Signed(Before):
    """AdaMuon (arXiv 2507.11005): sign(m) goes to the oracle."""

    name: ClassVar[str] = "sign"

    def __call__(self, m: Tensor, moment: Tensor | None) -> Tensor:
        return m.sign()


@dataclass(frozen=True)
class RowMoment(After):
    """v_i <- beta2 v_i + (1 - beta2) mean_j z_ij^2, then z_ij / (sqrt(v_i) + eps), rescaled to the norm ||z||_F it had.

    NorMuon (arXiv 2510.05491) divides in this way and then has a fixed RMS: follow it by `RMS(0.2)`, which overrides
    this norm. dion and nanochat have this norm.

    Args:
        side: "rows"; or "longer", as in nanochat: the columns of a matrix that has more columns than rows.
    """

    name: ClassVar[str] = "row-moment"
    state: ClassVar[Mapping[str, Extent]] = {"row_moment": "rows"}

    beta2: float = 0.95
    eps: float = 1e-8
    side: Side = "rows"

    def __post_init__(self) -> None:
        check_beta(self, self.beta2, self.eps)
        if self.side not in get_args(Side):
            raise ValueError(f'row-moment: side must be "rows" or "longer", got {self.side!r}')

    @property
    def extents(self) -> Mapping[str, Extent]:
        return {"row_moment": self.side}

    def __call__(self, z: Pieces) -> None:
        squares, old = z.row_squares(self.side), z.old_rows("row_moment", self.side)
        difference = torch.addcdiv(old, squares, z.lengths(self.side), value=-1.0)
        v = z.moved("row_moment", difference, 1.0 - self.beta2)
        # Of rows; norms of matrices are made of them, not by a product of matrices, which TF32 would round.
        root, norms = torch._foreach_sqrt([v, squares])
        divisor = root.add_(self.eps or z.tiny)
        divided = torch.addcdiv(z.layout.tiny, norms, divisor)  # zero stays zero
        before, after = (torch.linalg.vector_norm(x, dim=1, keepdim=True) for x in (norms, divided))
        z.multiply(before / after / divisor, self.side)


@dataclass(frozen=True)
class EntryMoment(After):
    """v <- beta2 v + (1 - beta2) z^2, then z / (sqrt(v) + eps), entry by entry.

    v starts at zero, and the first answer becomes about sign(z) / sqrt(1 - beta2): AdaMuon (arXiv 2507.11005) follows
    this by `RMS(0.2)`.
    """

    name: ClassVar[str] = "entry-moment"
    state: ClassVar[Mapping[str, Extent]] = {"entry_moment": "entries"}

    beta2: float = 0.95
    eps: float = 1e-8

    def __post_init__(self) -> None:
        check_beta(self, self.beta2, self.eps)

    def __call__(self, z: Pieces) -> None:
        old, stacks = z.old_entries("entry_moment"), z.stacks
        difference = [torch.addcmul(v, x, x, value=-1.0) for v, x in zip(old, stacks, strict=True)]
        new = z.moved("entry_moment", difference, 1.0 - self.beta2)
        z.stacks = [x / v.sqrt().add_(self.eps or z.tiny) for v, x in zip(new, stacks, strict=True)]


@dataclass(frozen=True)
class RMS(After):
    """z value sqrt(rows columns) / ||z||_F; zero stays zero. AdamW's updates have an RMS of about 0.2."""

    name: ClassVar[str] = "rms"

    value: float = 0.2

    def __post_init__(self) -> None:
        if not 0.0 < self.value < inf:
            raise ValueError(f"rms: value must be positive and finite, got {self.value}")

    def __call__(self, z: Pieces) -> None:
        z.multiply(self.value * (z.sizes / z.squares().clamp_min_(z.tiny)).sqrt_())
