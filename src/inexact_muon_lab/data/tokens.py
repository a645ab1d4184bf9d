"""Token sequences cut into windows, for language models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inexact_muon_lab.data.order import examples
from inexact_muon_lab.errors import LabError

Batch = tuple[NDArray[np.int64], NDArray[np.int64]]


@dataclass(frozen=True)
class Tokens:
    """Token arrays (memory-mapped or not); validation data is the last part or separate files."""

    train: tuple[NDArray[np.integer], ...]
    validation: tuple[NDArray[np.integer], ...]
    vocabulary: int
    name: str


def split(tokens: NDArray[np.integer], vocabulary: int, name: str) -> Tokens:
    """Hold out the last twentieth for validation."""
    cut = len(tokens) - max(1, len(tokens) // 20)
    return Tokens((tokens[:cut],), (tokens[cut:],), vocabulary, name)


class Windows:
    """Disjoint windows of `context` tokens, with the tokens that follow each as targets."""

    def __init__(self, pieces: Sequence[NDArray[np.integer]], context: int, name: str) -> None:
        self.pieces, self.context = pieces, context
        counts = [max(0, len(piece) - 1) // context for piece in pieces]
        self._ends = np.cumsum(counts)
        if not sum(counts):
            held = sum(len(piece) for piece in pieces)
            raise LabError(f"{name}: {held} tokens are too few for one window of {context} and its target")

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> Batch:
        piece = int(np.searchsorted(self._ends, index, side="right"))
        start = (index - (int(self._ends[piece - 1]) if piece else 0)) * self.context
        window = self.pieces[piece][start : start + self.context + 1].astype(np.int64)
        return window[:-1], window[1:]

    def gather(self, indices: Sequence[int] | NDArray[np.int64]) -> Batch:
        """Inputs and targets of several windows, stacked."""
        pairs = [self[int(index)] for index in indices]
        return np.stack([pair[0] for pair in pairs]), np.stack([pair[1] for pair in pairs])

    def batch(self, seed: int, step: int, size: int) -> Batch:
        """The training batch of a step."""
        return self.gather(examples(seed, step, size, len(self)))
