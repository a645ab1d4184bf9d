"""Distribution of weights over ranks, and owners of matrices."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from inexact_muon.plan.models import Model, Weight

NUMBER = 4
"""Bytes of a weight, gradient, momentum or AdamW moment: float32."""

MOST_RANKS = 100_000
MOST_MATRICES = 1_000_000
"""Matrices are assigned to ranks one by one: larger numbers of either are rejected."""


@dataclass(frozen=True)
class Layout:
    """`gpus` ranks: groups of `tp` neighbours divide each matrix, `dp` = gpus / tp groups divide the batch.

    Attributes:
        sharded: whether weights, gradients and state are also divided over dp, by rows (FSDP2), or replicated (DDP).
            AdamW's parameters are laid out in the same way.
    """

    gpus: int
    tp: int = 1
    sharded: bool = True

    def __post_init__(self) -> None:
        for name, value in (("gpus", self.gpus), ("tp", self.tp)):
            if not 1 <= value <= MOST_RANKS:
                raise ValueError(f"{name} must lie between 1 and {MOST_RANKS:,}, got {value}")
        if self.gpus % self.tp:
            raise ValueError(f"tp = {self.tp} does not divide gpus = {self.gpus}")

    @property
    def dp(self) -> int:
        """Number of parts of the batch."""
        return self.gpus // self.tp

    @property
    def pieces(self) -> int:
        """Number of ranks that hold different pieces of one matrix (a group)."""
        return self.tp * self.dp if self.sharded else self.tp

    @property
    def copies(self) -> int:
        """Number of groups, each with a replica of the model."""
        return self.gpus // self.pieces

    def parts(self, weight: Weight) -> tuple[int, int]:
        """Number of parts of the rows and of the columns."""
        parts = [self.dp if self.sharded else 1, 1]
        parts[weight.tp_side] *= self.tp
        return parts[0], parts[1]

    def piece(self, weight: Weight) -> tuple[int, int]:
        """Shape of the largest piece; with fewer rows than ranks some ranks have none."""
        (rows, columns), (across, along) = weight.shape, self.parts(weight)
        return -(-rows // across), -(-columns // along)

    def cuts_long_side_only(self, weight: Weight) -> bool:
        """Whether X X^T over the short side is a sum over pieces; either side of a square matrix is long."""
        cut = [side for side, parts in enumerate(self.parts(weight)) if parts > 1]
        return len(cut) == 1 and weight.shape[cut[0]] == max(weight.shape)


@dataclass(frozen=True)
class Load:
    """Work of one rank: flops and entries of its matrices."""

    flops: int
    entries: int


def owners(matrices: Sequence[Weight], ranks: int, flops: Callable[[Weight], int]) -> list[Load]:
    """Assign each matrix to the rank with the least work so far, most expensive first; ties to the lower rank."""
    load, entries = [0] * ranks, [0] * ranks
    queue = [(0, rank) for rank in range(ranks)]
    for weight in sorted(matrices, key=flops, reverse=True):
        cost = flops(weight)
        for _ in range(weight.count):
            _, rank = queue[0]
            load[rank] += cost
            entries[rank] += weight.entries
            heapq.heapreplace(queue, (load[rank], rank))
    return [Load(f, e) for f, e in zip(load, entries, strict=True)]


def gradient_bytes(parameters: int, layout: Layout) -> float:
    """Bytes that one rank sends to average gradients, before any oracle: rings over dp, float32.

    Reduce-scatter (sharded) sends (dp-1)/dp of the rank's part of the model, all-reduce (replicated) twice that.
    """
    once = (layout.dp - 1) / layout.dp * NUMBER * parameters / layout.tp
    return once if layout.sharded else 2 * once


def state_bytes(model: Model, layout: Layout) -> float:
    """Bytes that one rank holds between steps: weight, gradient and momentum; a second moment for AdamW."""
    rest = model.parameters - model.lmo_parameters
    return NUMBER * (3 * model.lmo_parameters + 4 * rest) / layout.pieces
