"""Many small tensors as the rows of one matrix, so that a number for each of them needs no launch for each.

The length of a row divides the sizes of all tensors: a number for each tensor becomes one for each row. Dispatching a
view takes the host as long as launching a kernel, so tensors are joined and cut by few of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, prod
from typing import Any, ClassVar

import torch
from torch import Tensor


@dataclass(frozen=True)
class Packing:
    """Shapes of tensors that lie one after another, as matrices with the columns that most of them have.

    Attributes:
        flat: shape (-1, columns) of that matrix; (-1,) if these columns do not divide all tensors.
        counts: rows of each tensor.
        others: (index, shape) of tensors of other shapes, which a view changes.
        length: entries of a row of `joined`; divides the sizes of all tensors.
    """

    flat: tuple[int, ...]
    counts: list[int]
    others: list[tuple[int, tuple[int, ...]]]
    length: int

    @staticmethod
    def cut(parts: Sequence[Tensor], packings: Sequence[Packing]) -> Packed:
        """The tensors that lie in several larger ones, as views."""
        tensors = Packed()
        tensors.parts = parts
        for x, packing in zip(parts, packings, strict=True):
            views = list(x.view(packing.flat).split_with_sizes(packing.counts))
            for k, shape in packing.others:
                views[k] = views[k].view(shape)
            tensors += views
        return tensors

    def joined(self, tensors: Sequence[Any]) -> Tensor:
        """A copy of the tensors as one matrix."""
        parts = list(tensors)
        for k, _ in self.others:
            parts[k] = parts[k].reshape(self.flat)
        return torch.cat(parts).view(-1, self.length)


def packing_of(shapes: Sequence[Sequence[int]]) -> Packing:
    """The packing of tensors of these shapes."""
    sizes = [prod(shape) for shape in shapes]
    columns = Counter(shape[1] if len(shape) == 2 else 0 for shape in shapes)
    width = max(columns, key=columns.__getitem__, default=0)
    width = 0 if not width or any(size % width for size in sizes) else width
    plain = [(len(shape) == 2 and shape[1] == width) if width else len(shape) == 1 for shape in shapes]
    others = [(k, tuple(shape)) for k, (shape, same) in enumerate(zip(shapes, plain, strict=True)) if not same]
    return Packing((-1, width) if width else (-1,), [size // (width or 1) for size in sizes], others, gcd(*sizes) or 1)


class Packed(list[Tensor]):
    """Tensors that lie one after another in a few larger ones.

    Attributes:
        parts: the larger ones.
    """

    parts: Sequence[Tensor]


@dataclass(frozen=True)
class Rows(Packing):
    """The packing of tensors that are joined, and for each row the place of its tensor in a list of numbers."""

    LARGE: ClassVar[int] = 2**19
    """Entries from which a tensor is worth a launch of its own, and copying it is not."""

    MANY: ClassVar[int] = 2**21
    """The same where every rank updates all copies of the parameters, and launches add up."""

    FEWEST: ClassVar[int] = 8
    """Tensors from which joining them saves launches."""

    SHORTEST: ClassVar[int] = 16
    """Entries of a row below which the index would take as much memory as the tensors."""

    index: Tensor

    @classmethod
    def of(cls, cache: dict[str, Rows], key: str, indices: Sequence[int], tensors: Sequence[Tensor]) -> Rows:
        """The rows of tensors whose numbers have these indices; cached, since the index is copied to the device."""
        if key not in cache:
            packing = packing_of([x.shape for x in tensors])
            pairs = zip(indices, tensors, strict=True)
            index = torch.tensor([k for k, x in pairs for _ in range(x.numel() // packing.length)])
            cache[key] = cls(**vars(packing), index=index.to(tensors[0].device))
        return cache[key]

    def spread(self, numbers: Tensor) -> Tensor:
        """The number of each row's tensor, from one for every tensor of the list."""
        return numbers.index_select(0, self.index).unsqueeze(1)

    def copy_to(self, tensors: Sequence[Tensor], x: Tensor) -> None:
        """Copy the rows to the tensors."""
        torch._foreach_copy_(list(tensors), Packing.cut([x], [self]))


def few(sizes: Sequence[int], large: int) -> list[int]:
    """Indices of the tensors, by their numbers of entries, that are worth joining: small ones, if there are several."""
    small = [k for k, size in enumerate(sizes) if 0 < size < large]
    return small if len(small) >= Rows.FEWEST and gcd(*[sizes[k] for k in small]) >= Rows.SHORTEST else []
