"""The rows of a weight that a tensor holds, and how functions of torch rearrange them.

A layer's output has one number for each row of its weight. Reshaping, splitting and transposing give each dimension of
the tensor a size and a stride in these rows: [q; k; v] with 4 heads of 8 rows as (batch, time, 3, 4, 8) has the strides
(-, -, 32, 8, 1). The rows that lie along the last dimension when attention takes the tensor are one head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

LEADING = 2
"""Dimensions assumed before the channels if nothing else is known: batch and time."""


class Untracked(Exception):
    """The rows of a tensor are not a regular grid, or sizes are not known."""


@dataclass(frozen=True)
class Axis:
    """A dimension along which a weight's rows lie."""

    size: int
    stride: int = 1


Dims = tuple[Axis | None, ...]


@dataclass(frozen=True)
class WeightRows:
    """WeightRows of a layer's weight along the dimensions of a tensor.

    Attributes:
        layer: id of the layer.
        dims: the last dimensions; None for one along which no rows lie.
        first: the first row.
        role: query, key or value, by the name of the variable that holds the tensor.
        fed: whether it is given to a layer.
        normed: whether a normalisation came after the layer.
        open: whether dimensions without rows come before `dims`, of a number that is not known.
    """

    layer: int
    dims: Dims
    first: int = 0
    role: str = ""
    fed: bool = False
    normed: bool = False
    open: bool = True

    @property
    def axes(self) -> tuple[Axis, ...]:
        """Dimensions with rows."""
        return tuple(axis for axis in self.dims if axis is not None)

    def closed(self) -> WeightRows:
        """With the dimensions before those with rows, as many as activations usually have."""
        return replace(self, dims=(*(None,) * LEADING, *self.dims), open=False) if self.open else self

    def at(self, dim: int) -> tuple[WeightRows, int]:
        """The rows and the place in `dims` of a dimension."""
        if -len(self.dims) <= dim < 0:
            return self, len(self.dims) + dim
        rows = self.closed()
        if not -len(rows.dims) <= dim < len(rows.dims):
            raise Untracked
        return rows, dim % len(rows.dims)

    def permuted(self, order: Sequence[int]) -> WeightRows:
        """permute(order)"""
        rows = self.closed()
        if sorted(dim % len(order) for dim in order) != list(range(len(rows.dims))):
            raise Untracked
        return replace(rows, dims=tuple(rows.dims[dim] for dim in order))

    def transposed(self, a: int, b: int) -> WeightRows:
        """transpose(a, b)"""
        rows = self if min(a, b) >= -len(self.dims) and max(a, b) < 0 else self.closed()
        (_, i), (_, j) = rows.at(a), rows.at(b)
        dims = list(rows.dims)
        dims[i], dims[j] = dims[j], dims[i]
        return replace(rows, dims=tuple(dims))

    def narrowed(self, dim: int, start: int, size: int | None) -> WeightRows:
        """A range of a dimension; without a size one entry, and the dimension is gone."""
        rows, place = self.at(dim)
        axis = rows.dims[place]
        if axis is None:
            return replace(rows, dims=rows.dims[:place] + (() if size is None else (None,)) + rows.dims[place + 1 :])
        if not 0 <= start < axis.size or start + (size or 1) > axis.size or size == 0:
            raise Untracked
        part = () if size is None else (Axis(size, axis.stride),)
        dims = (*rows.dims[:place], *part, *rows.dims[place + 1 :])
        return replace(rows, dims=dims, first=rows.first + start * axis.stride)

    def split(self, dim: int, sizes: Sequence[int]) -> list[WeightRows]:
        """split(sizes, dim)"""
        rows, place = self.at(dim)
        axis = rows.dims[place]
        if axis is None:
            return [self] * len(sizes)
        if sum(sizes) != axis.size:
            raise Untracked
        return [rows.narrowed(place - len(rows.dims), sum(sizes[:i]), size) for i, size in enumerate(sizes)]

    def size(self, dim: int) -> int:
        """The number of rows along a dimension."""
        rows, place = self.at(dim)
        axis = rows.dims[place]
        if axis is None:
            raise Untracked
        return axis.size

    def unflattened(self, dim: int, sizes: Sequence[int | None]) -> WeightRows:
        """unflatten(dim, sizes)"""
        rows, place = self.at(dim)
        axis = rows.dims[place]
        if axis is None:
            raise Untracked
        return replace(rows, dims=(*rows.dims[:place], *cut(axis, sizes), *rows.dims[place + 1 :]))

    def flattened(self, start: int, end: int) -> WeightRows:
        """flatten(start, end)"""
        rows = self if min(start, end) >= -len(self.dims) and max(start, end) < 0 else self.closed()
        (_, i), (_, j) = rows.at(start), rows.at(end)
        return replace(rows, dims=(*rows.dims[:i], merged(rows.dims[i : j + 1]), *rows.dims[j + 1 :]))

    def viewed(self, sizes: Sequence[int | None]) -> WeightRows:
        """reshape(sizes); None and -1 are not known, and dimensions of an unknown number may be missing in front."""
        trailing = self.axes
        if self.dims[len(self.dims) - len(trailing) :] != trailing:
            raise Untracked  # a dimension without rows lies between those with rows
        runs, remaining, dims = _runs(trailing), [None if n == -1 else n for n in sizes], list[Axis]()
        while runs and remaining:
            run = runs.pop()
            count = _fitting(remaining, run, last=not runs)
            dims = [*cut(run, remaining[len(remaining) - count :]), *dims]
            remaining = remaining[: len(remaining) - count]
        foreign = (None,) * len(remaining)
        return replace(self, dims=(*foreign, *runs, *dims), open=not remaining)


def cut(axis: Axis, sizes: Sequence[int | None]) -> list[Axis]:
    """An axis as several; one of the sizes may be unknown."""
    known = prod(n for n in sizes if n not in (None, -1))
    if known < 1 or axis.size % known or sum(n in (None, -1) for n in sizes) > 1:
        raise Untracked
    sizes = [axis.size // known if n in (None, -1) else n for n in sizes]
    if prod(n or 0 for n in sizes) != axis.size:
        raise Untracked
    strides = [axis.stride * prod(n or 0 for n in sizes[i + 1 :]) for i in range(len(sizes))]
    return [Axis(n or 0, stride) for n, stride in zip(sizes, strides, strict=True)]


def merged(dims: Sequence[Axis | None]) -> Axis | None:
    """Several dimensions as one."""
    axes = [axis for axis in dims if axis is not None]
    if not axes:
        return None
    runs = _runs(axes)
    if len(axes) < len(dims) or len(runs) > 1:
        raise Untracked
    return runs[0]


def _runs(axes: Sequence[Axis]) -> list[Axis]:
    """With neighbours joined that are one range of rows."""
    runs: list[Axis] = []
    for axis in axes:
        if runs and runs[-1].stride == axis.size * axis.stride:
            runs[-1] = Axis(runs[-1].size * axis.size, axis.stride)
        else:
            runs.append(axis)
    return runs


def _fitting(sizes: Sequence[int | None], run: Axis, last: bool) -> int:
    """How many of the last sizes make up a run.

    Of the leftmost run they begin at the first known size that fits: what comes before, batch and time, is seldom
    known. One more belongs to it if the known ones are not enough.
    """
    for count in range(1, len(sizes) + 1):
        if None not in sizes[-count:] and prod(n or 0 for n in sizes[-count:]) == run.size:
            return count
    for start, first in enumerate(sizes):
        rest = sizes[start:]
        if last and first is not None and run.size % prod(n for n in rest if n is not None) == 0:
            return len(rest) if None in rest else len(rest) + 1
    raise Untracked
