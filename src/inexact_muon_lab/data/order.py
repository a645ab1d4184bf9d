"""The examples of each step: epochs in sequence, each a new permutation of the data."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray


def examples(seed: int, step: int, batch: int, size: int) -> NDArray[np.int64]:
    """Indices below `size` of the `batch` examples of a step; a pure function."""
    positions = np.arange(step * batch, (step + 1) * batch)
    epochs = positions // size
    return np.array([permutation(seed, int(e), size)[p] for e, p in zip(epochs, positions % size, strict=True)])


@lru_cache(maxsize=2)
def permutation(seed: int, epoch: int, size: int) -> NDArray[np.int64]:
    """The permutation of an epoch."""
    return np.random.Generator(np.random.PCG64([seed, epoch])).permutation(size)
