"""Which examples a step sees: epochs one after another, each a new permutation of everything."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray


def examples(seed: int, step: int, batch: int, size: int) -> NDArray[np.int64]:
    """Indices below `size` for the `batch` examples of a step; the same whenever it is asked."""
    places = np.arange(step * batch, (step + 1) * batch)
    epochs = places // size
    return np.array([permutation(seed, int(e), size)[p] for e, p in zip(epochs, places % size, strict=True)])


@lru_cache(maxsize=2)
def permutation(seed: int, epoch: int, size: int) -> NDArray[np.int64]:
    """The order of an epoch."""
    return np.random.Generator(np.random.PCG64([seed, epoch])).permutation(size)
