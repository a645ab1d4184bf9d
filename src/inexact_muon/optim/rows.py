"""Many small tensors as the rows of one matrix, so that a number for each of them needs no launch for each.

The length of a row divides the sizes of all tensors: a number for each tensor becomes one for each row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any, ClassVar

import torch
from torch import Tensor

flattened: Callable[[Sequence[Tensor]], Tensor] = torch._utils._flatten_dense_tensors
"""All entries of tensors one after another, by one call; a view if there is one tensor."""

unflattened: Callable[[Tensor, Sequence[Tensor]], tuple[Tensor, ...]] = torch._utils._unflatten_dense_tensors
"""Views of a flat tensor, one after another, with the shapes of tensors that are not empty, by one call."""


@dataclass(frozen=True)
class Rows:
    """The tensors of a list that are joined.

    Attributes:
        length: entries of a row.
        sizes: entries of each tensor.
        index: for each row, the place of its tensor in the list.
    """

    LARGE: ClassVar[int] = 2**19
    """Entries from which a tensor is worth a launch of its own, and copying it is not."""

    MANY: ClassVar[int] = 2**21
    """The same where every rank updates all copies of the parameters, and launches add up."""

    FEWEST: ClassVar[int] = 8
    """Tensors from which joining them saves launches."""

    SHORTEST: ClassVar[int] = 16
    """Entries of a row below which the index would take as much memory as the tensors."""

    length: int
    sizes: tuple[int, ...]
    index: Tensor

    @classmethod
    def of(cls, cache: dict[str, Rows], key: str, indices: Sequence[int], tensors: Sequence[Tensor]) -> Rows:
        """The rows of tensors whose numbers have these indices; cached, since the index is copied to the device."""
        if key not in cache:
            sizes = tuple(x.numel() for x in tensors)
            length = gcd(*sizes)
            index = torch.tensor([k for k, size in zip(indices, sizes, strict=True) for _ in range(size // length)])
            cache[key] = cls(length, sizes, index.to(tensors[0].device))
        return cache[key]

    def joined(self, tensors: Sequence[Any]) -> Tensor:
        """A copy of the tensors as one matrix."""
        return flattened(tensors).view(-1, self.length)

    def spread(self, numbers: Tensor) -> Tensor:
        """The number of each row's tensor, from one for every tensor of the list."""
        return numbers.index_select(0, self.index).unsqueeze(1)

    def copy_to(self, tensors: Sequence[Tensor], x: Tensor) -> None:
        """Copy the rows to the tensors."""
        torch._foreach_copy_(list(tensors), list(unflattened(x.view(-1), tensors)))


def few(sizes: Sequence[int], large: int) -> list[int]:
    """Indices of the tensors, by their numbers of entries, that are worth joining: small ones, if there are several."""
    small = [k for k, size in enumerate(sizes) if 0 < size < large]
    return small if len(small) >= Rows.FEWEST and gcd(*[sizes[k] for k in small]) >= Rows.SHORTEST else []
