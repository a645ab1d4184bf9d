"""The rows of a weight that a tensor holds, and how functions of torch and einops rearrange them.

A layer's output has one entry for each row of its weight. Here it is an array of the numbers of these rows, in which
other dimensions (batch, time) have size 1; numpy rearranges it as torch does the output. [q; k; v] with 4 heads of 8
rows as (batch, time, 3, 4, 8) is arange(96).reshape(1, 1, 3, 4, 8). The rows that lie along the last dimension when
attention takes the tensor are one head.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

Index = NDArray[np.int64]

LEADING = 2
"""Dimensions before the rows if their number is not known: batch and time."""

SAME = (
    *("contiguous", "clone", "detach", "float", "half", "bfloat16", "to", "type", "type_as", "dropout"),
    *("requires_grad_", "add", "sub", "mul", "div", "mul_", "div_", "add_", "neg", "clamp", "tanh", "relu", "silu"),
    "gelu",
)
"""Functions that leave each entry in its place."""


@dataclass(frozen=True, eq=False)
class WeightRows:
    """Rows of a layer's weight along the dimensions of a tensor.

    Attributes:
        layer: id of the layer.
        index: the number of the row of each entry; dimensions without rows have size 1.
        role: query, key or value, by the name of the variable that holds the tensor.
        fed: whether it is given to a layer.
        normed: whether a normalisation came after the layer.
    """

    layer: int
    index: Index
    role: str = ""
    fed: bool = False
    normed: bool = False

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for equal rows."""
        return self.layer, self.index.shape, self.index.tobytes(), self.role, self.fed, self.normed

    def __iter__(self) -> Iterator[WeightRows]:
        return (replace(self, index=part) for part in self.index)

    @property
    def divided(self) -> bool:
        """Whether the output has more dimensions than batch, time and one of rows."""
        return self.index.ndim > LEADING + 1 or sum(side > 1 for side in self.index.shape) > 1


def rows_of(layer: int, rows: int, kernel: int = 0) -> WeightRows:
    """The output of a linear layer, (batch, time, rows), or of a convolution, (batch, rows, ...)."""
    shape = (1, rows, *(1,) * kernel) if kernel else (*(1,) * LEADING, rows)
    return WeightRows(layer, np.arange(rows).reshape(shape))


def rearranged(
    rows: WeightRows, name: str, args: Sequence[Any], named: Mapping[str, Any]
) -> WeightRows | list[WeightRows]:
    """The rows of a function's result.

    Args:
        args: numbers, text and lists of them after the tensor; None for what is not known.

    Raises:
        ValueError, TypeError, LookupError or ArithmeticError: the function is another one, or does something to the
            rows that is not known.
    """
    normed = name in ("layer_norm", "rms_norm", "normalize") or (name.endswith("norm") and not (args or named))
    if normed or name in SAME:
        return replace(rows, normed=rows.normed or normed)
    result = _result(rows.index, name, args, named)
    if isinstance(result, list):
        return [replace(rows, index=part) for part in result]
    return replace(rows, index=result)


def _result(index: Index, name: str, args: Sequence[Any], named: Mapping[str, Any]) -> Index | list[Index]:
    numbers = args[0] if args and isinstance(args[0], list) else list(args)
    match name, [*args, *named.values()]:
        case "view" | "reshape" | "_unsafe_view", _:
            return _viewed(index, named.get("shape", numbers))
        case "reshape_as" | "view_as", _ if sum(side > 1 for side in index.shape) == 1:
            return index.reshape(*(1,) * LEADING, -1)  # as it was before a norm over channels
        case "transpose" | "swapaxes" | "swapdims", [int(a), int(b)]:
            return index.swapaxes(a, b)
        case "permute", _:
            return index.transpose(named.get("dims", numbers))
        case "unflatten", [int(dim), list(sizes)]:
            dim %= index.ndim
            inner = [-1 if size is None else size for size in sizes]
            return index.reshape(*index.shape[:dim], *inner, *index.shape[dim + 1 :])
        case "flatten", [*ends]:
            start, end = (dim % index.ndim for dim in (*ends, *(0, -1)[len(ends) :]))
            return index.reshape(*index.shape[:start], -1, *index.shape[end + 1 :])
        case "unsqueeze", [int(dim)]:
            return np.expand_dims(index, dim)
        case "select", [int(dim), int(entry)]:
            return _entry(index, entry, dim)
        case "narrow", [int(dim), int(start), int(size)]:
            return _entry(index, slice(start, start + size), dim)
        case "rearrange", [str(pattern), *_]:
            return _patterned(index, pattern, {key: n for key, n in named.items() if isinstance(n, int)})
        case "chunk" | "split" | "split_with_sizes", [int() | list() as parts, *rest]:
            return _split(index, name, parts, rest[0] if rest else 0)
        case "unbind", [*rest]:
            dim = rest[0] if rest else 0
            return [_entry(index, i, dim) for i in range(_rows_along(index, dim))]
    raise ValueError(name)


def taken(rows: WeightRows, keys: Sequence[Any]) -> WeightRows:
    """x[keys]: numbers, slices without a step, ranges of numbers and ..."""
    index, keys = rows.index, list(keys)
    if Ellipsis in keys:
        place = keys.index(Ellipsis)
        keys[place : place + 1] = [slice(None)] * (index.ndim - len(keys) + 1)
    for dim, key in reversed([*enumerate(keys)]):
        index = _entry(index, key, dim)
    return replace(rows, index=index)


def _entry(index: Index, key: Any, dim: int) -> Index:
    """The part of one dimension; one without rows has all of its entries everywhere."""
    along = index.shape[dim]
    part: Any
    if isinstance(key, slice):
        part = index if along == 1 else index.take(range(*key.indices(along)), dim)
    elif isinstance(key, int):
        part = index.take(0 if along == 1 else key, dim)
    else:
        _rows_along(index, dim)
        part = index.take(range(along)[key[0]] + np.arange(len(key)), dim)
        if key != [*range(key[0], key[0] + len(key))]:
            raise ValueError(key)
    if not part.size:
        raise ValueError(key)
    rows: Index = part
    return rows


def _rows_along(index: Index, dim: int) -> int:
    """The number of rows along a dimension that has some."""
    if index.shape[dim] == 1:
        raise ValueError("the number of entries is not known")
    return index.shape[dim]


def _split(index: Index, name: str, parts: int | list[int], dim: int) -> list[Index]:
    if isinstance(parts, list):
        if index.shape[dim] == 1 and None not in parts:
            return [index] * len(parts)
        if sum(parts) != index.shape[dim]:
            raise ValueError(parts)
        return np.split(index, np.cumsum(parts)[:-1], dim)
    along = _rows_along(index, dim)
    return np.split(index, along // parts if name == "split" else parts, dim)


def _viewed(index: Index, sizes: Sequence[int | None]) -> Index:
    """reshape(sizes), of which None and -1 are not known.

    The first dimensions, batch and time, are seldom known, not even how many there are: the rows begin at the first
    known size that fits. The first unknown one after it takes what is missing, or the one before it if there is none.
    """
    sizes = [None if size == -1 else size for size in sizes]
    leading = 0 if sizes and 1 < len(index) == sizes[0] else LEADING  # query, key and value may come first
    for start in reversed(range(len(sizes))):
        if None not in sizes[start:] and prod(size or 0 for size in sizes[start:]) == index.size:
            return index.reshape(*(1,) * (start or leading), *sizes[start:])
    for start, first in enumerate(sizes):
        known = prod(size for size in sizes[start:] if size is not None)
        if first is None or index.size % known:
            continue
        shape, missing = sizes[start:], index.size // known
        if None in shape:
            unknown = [i for i, size in enumerate(shape) if size is None]
            inner = [side for side in index.shape if side > 1][-2:]
            if len(unknown) > 1 and len(inner) == 2 and prod(inner) == missing:  # (3, batch heads, time, size)
                shape[unknown[0]], shape[unknown[-1]] = inner
            else:
                shape[unknown[0]] = missing
        else:  # before it; dimensions without rows between the two stay there
            outer = index.shape[:-1] if index.shape[-1] == known else ()
            between = next((i for i, side in enumerate(reversed(outer)) if side > 1), 0)
            start -= 1 + between
            if start < 0 or any(size is not None for size in sizes[start : start + 1 + between]):
                break
            shape = [missing, *(1,) * between, *shape]
        return index.reshape(*(1,) * (start or leading), *(size or 1 for size in shape))
    raise ValueError(sizes)


def _patterned(index: Index, pattern: str, sizes: Mapping[str, int]) -> Index:
    """rearrange(x, pattern, **sizes)"""
    groups = [re.findall(r"\(([^)]*)\)|(\S+)", side) for side in pattern.split("->")]
    before, after = ([(inside or single).split() for inside, single in side] for side in groups)
    if ["..."] in before:
        rest = [[f"...{i}"] for i in range(index.ndim - len(before) + 1)]
        for side in (before, after):
            place = side.index(["..."])
            side[place : place + 1] = rest
    index = index.reshape(*(1,) * (len(before) - index.ndim), *index.shape[max(0, index.ndim - len(before)) :])
    lengths: dict[str, int] = {}
    for names, along in zip(before, index.shape, strict=True):
        known, unknown = prod(sizes.get(name, 1) for name in names), [name for name in names if name not in sizes]
        if along > 1 and (along % known or len(unknown) > 1 or (not unknown and known != along)):
            raise ValueError(pattern)
        lengths |= {name: 1 if along == 1 else sizes.get(name, along // known) for name in names}
    order = list(lengths)
    index = index.reshape([lengths[name] for name in order])
    index = index.transpose([order.index(name) for names in after for name in names])
    return index.reshape([prod(lengths[name] for name in names) for names in after])
