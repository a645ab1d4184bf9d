"""What functions of torch and einops do to the rows that a tensor holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from inexact_muon.routing.reading.patterns import rearranged
from inexact_muon.routing.reading.rows import Untracked, WeightRows

SAME = (
    *(
        "contiguous",
        "clone",
        "detach",
        "float",
        "half",
        "bfloat16",
        "to",
        "type",
        "type_as",
        "dropout",
        "requires_grad_",
    ),
    *("add", "sub", "mul", "div", "mul_", "div_", "add_", "neg", "clamp", "tanh", "relu", "silu", "gelu"),
)
"""Functions that leave each entry in its place."""


def rearrange(
    rows: WeightRows, name: str, args: Sequence[Any], named: Mapping[str, Any]
) -> WeightRows | list[WeightRows]:
    """The rows of a function's result.

    Args:
        args: numbers, text and lists of them after the tensor; None for what is not known.

    Raises:
        Untracked: the function is another one, or does something to the rows that is not known.
    """
    numbers = list(args[0]) if args and isinstance(args[0], list) else list(args)
    match name, [*args, *named.values()]:
        case _ if name in SAME:
            return rows
        case "layer_norm" | "rms_norm" | "normalize", _:
            return replace(rows, normed=True)
        case _, [] if name.endswith("norm"):
            return replace(rows, normed=True)  # a function of the model's own
        case "view" | "reshape" | "_unsafe_view", _:
            return rows.viewed(named.get("shape", numbers))
        case "reshape_as" | "view_as", _ if len(rows.axes) == 1:
            return replace(rows, dims=rows.axes, open=True)  # as it was before a norm over channels
        case "transpose" | "swapaxes" | "swapdims", [int(a), int(b)]:
            return rows.transposed(a, b)
        case "permute", _ if all(isinstance(n, int) for n in numbers):
            return rows.permuted(named.get("dims", numbers))
        case "unflatten", [int(dim), list(sizes)]:
            return rows.unflattened(dim, sizes)
        case "flatten", [*ends]:
            start, end = ends[0] if ends else 0, ends[1] if len(ends) > 1 else -1
            return rows.flattened(start, end) if isinstance(start, int) and isinstance(end, int) else _untracked()
        case "unsqueeze", [int(dim)]:
            return _unsqueezed(rows, dim)
        case "select", [int(dim), int(index)]:
            return rows.narrowed(dim, index, None)
        case "narrow", [int(dim), int(start), int(size)]:
            return rows.narrowed(dim, start, size)
        case "rearrange", [str(pattern), *_]:
            return rearranged(rows, pattern, {k: n for k, n in named.items() if isinstance(n, int)})
    return _parts(rows, name, [*args, *named.values()])


def taken(rows: WeightRows, index: Sequence[Any]) -> WeightRows:
    """x[index]: numbers, slices without a step, None and ..."""
    if Ellipsis in index:
        place = list(index).index(Ellipsis)
        front, back = index[:place], index[place + 1 :]
    else:
        front, back = index, []
    for i, key in enumerate(reversed(back)):
        rows = _entry(rows, key, -1 - i)
    for i, key in reversed(list(enumerate(front))):
        rows = _entry(rows, key, i)
    return rows


def _entry(rows: WeightRows, key: Any, dim: int) -> WeightRows:
    if key == slice(None):
        return rows
    rows, place = rows.at(dim)
    axis, dim = rows.dims[place], place - len(rows.dims)
    if isinstance(key, slice):
        start, stop, _ = key.indices(0 if axis is None else axis.size)
        return rows if axis is None else rows.narrowed(dim, start, stop - start)
    if isinstance(key, list) and key and all(isinstance(n, int) for n in key) and key == [*range(key[0], key[-1] + 1)]:
        return rows.narrowed(dim, key[0] % rows.size(dim), len(key))
    if not isinstance(key, int):
        raise Untracked
    return rows.narrowed(dim, key + axis.size if axis is not None and key < 0 else key, None)


def _parts(rows: WeightRows, name: str, args: Sequence[Any]) -> list[WeightRows]:
    """chunk, split and unbind"""
    match name, args:
        case "chunk" | "split" | "split_with_sizes", [int() | list() as parts, *rest]:
            dim = rest[0] if rest else 0
            if not isinstance(dim, int) or (isinstance(parts, list) and None in parts):
                raise Untracked
            if isinstance(parts, list):
                return rows.split(dim, parts)
            size = rows.size(dim)
            count = size // parts if name == "split" and parts else parts
            return rows.split(dim, [size // count] * count) if count and size % count == 0 else _untracked()
        case "unbind", [*rest]:
            dim = rest[0] if rest else 0
            return (
                [rows.narrowed(dim, i, None) for i in range(rows.size(dim))] if isinstance(dim, int) else _untracked()
            )
    raise Untracked


def _unsqueezed(rows: WeightRows, dim: int) -> WeightRows:
    if dim < 0 and -dim - 1 <= len(rows.dims):
        place = len(rows.dims) + dim + 1
    else:
        rows = rows.closed()
        place = dim % (len(rows.dims) + 1)
    return replace(rows, dims=(*rows.dims[:place], None, *rows.dims[place:]))


def _untracked() -> Any:
    raise Untracked
