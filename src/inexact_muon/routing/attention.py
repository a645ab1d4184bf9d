"""The heads of attention: blocks of rows of query, key and value, read from the code that computes with them.

The number of heads is taken from what the module does with a layer's output: view(batch, time, heads, size), chunk,
split, rearrange. Attributes such as `num_heads` must agree where there are some.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, product

from torch import nn

from inexact_muon.routing.flow import Uses, uses_in
from inexact_muon.routing.layers import Site, linear_sides
from inexact_muon.routing.layouts import GENERIC, HEAD_DIM, HEADS, KV_HEADS, named_like_fused
from inexact_muon.routing.reading.rows import Axis, WeightRows
from inexact_muon.routing.words import role
from inexact_muon.views import Interleaved, Split, Stacked, View

SIZES = (
    *(*HEAD_DIM, "d_kv", "key_value_proj_dim", "qk_head_dim", "v_head_dim", "qk_nope_head_dim", "key_dim", "val_dim"),
    *("head_k_dim", "head_v_dim", "attention_head_dim"),
)
"""Attributes that hold the rows of a head."""

COUNTS = (*HEADS, *KV_HEADS, "num_k_heads", "num_v_heads")
"""Attributes that hold a number of heads."""

NEAR = 3
"""Enclosing modules whose code is read."""


@dataclass(frozen=True)
class Block:
    """Rows of one head.

    Attributes:
        role: query, key, value, or empty.
        parts: rows of its parts, such as those that are rotated and those that are not.
        normed: whether they are normalised after the layer, so that their size has no effect.
    """

    first: int
    size: int
    role: str
    parts: tuple[int, ...] = ()
    normed: bool = False


class Unknown(Exception):
    """A layer of attention whose heads are not known, and why."""


class Attention:
    """Heads of the attention layers of a model; each module is read once."""

    def __init__(self) -> None:
        self._read: dict[int, Uses] = {}

    def blocks(self, site: Site, rows: int) -> list[Block]:
        """The heads in the weight of a linear layer, in order; empty if it is none of attention, or has no heads.

        Raises:
            Unknown: it is one of attention, and the number of heads is not known.
        """
        uses, named = self._uses_of(site), _role_of(site)
        part = "" if named == "several" else named
        uses = [replace(use, role=use.role or part) for use in uses]
        divided = [use for use in uses if len(use.axes) > 1]
        if not named and not (divided and all(use.role for use in divided)):
            return []
        numbers = _Numbers.of(site)
        if not uses:
            raise Unknown("what is done with its output could not be read")
        if not divided:
            if max(numbers.heads, default=1) > 1 and any(not use.fed and use.axes == (Axis(rows),) for use in uses):
                raise Unknown(f"the module has {numbers}, and its code does not divide this output")
            return []
        return _agreeing(uses, rows, numbers)

    def _uses_of(self, site: Site) -> list[WeightRows]:
        """What is done with the layer's output, by the innermost module that divides it, or does something with it."""
        keys, first = (id(site.module), id(site.parameter)), list[WeightRows]()
        for read in self._around(site):
            uses = [use for use in read.rows if use.layer in keys]
            if any(len(use.axes) > 1 for use in uses):
                return uses
            first = first or uses
        return first

    def givers(self, site: Site) -> tuple[list[nn.Module], list[nn.Module]]:
        """Linear layers near this one whose output it takes, and those of which it takes it after a normalisation."""
        for (_, module), read in zip(site.chain[-1 - NEAR : -1][::-1], self._around(site), strict=True):
            if sources := read.givers.get(id(site.module)):
                normed = frozenset[int]().union(*(read.givers.get(key, ()) for key in sources))
                linear = [layer for layer in module.modules() if linear_sides(layer) is not None]
                direct = [layer for layer in linear if id(layer) in sources]
                return direct, [layer for layer in linear if id(layer) in normed - sources]
        return [], []

    def _around(self, site: Site) -> Iterator[Uses]:
        for _, module in site.chain[-1 - NEAR : -1][::-1]:
            if id(module) not in self._read:
                self._read[id(module)] = uses_in(module)
            yield self._read[id(module)]


@dataclass(frozen=True)
class _Numbers:
    """Numbers and sizes of heads that attributes give; the number of values if it has an attribute of its own."""

    heads: frozenset[int]
    sizes: frozenset[int]
    values: int | None = None

    @classmethod
    def of(cls, site: Site) -> _Numbers:
        heads, sizes = ({site.number(name) for name in names} for names in (COUNTS, SIZES))
        return cls(frozenset(n for n in heads if n), frozenset(n for n in sizes if n), site.number("num_v_heads"))

    def __str__(self) -> str:
        return " or ".join(map(str, sorted(self.heads or self.sizes))) + (" heads" if self.heads else " rows a head")

    def agree(self, blocks: Sequence[Block]) -> bool:
        """Whether the numbers of heads, or their rows, are those of the attributes."""
        if not self.heads:
            return not self.sizes or {b.size for b in blocks} <= self.sizes
        counts = {part: sum(b.role == part for b in blocks) for part in {b.role for b in blocks}}
        fused = {times * n + 2 * k for n in self.heads for k in (0, *self.heads) for times in (0, 1, 2, 3)}
        shared = self.heads | {1}  # a key and value of all heads
        values = shared if self.values is None else {self.values}
        known = {"": fused | shared, "query": self.heads, "gate": self.heads, "value": values}
        return all(count in known.get(part, shared) for part, count in counts.items())


def view_of(blocks: Sequence[Block]) -> View:
    """A matrix per head."""
    sizes = [block.size for block in blocks]
    period = next(n for n in range(1, len(sizes) + 1) if sizes == sizes[:n] * (len(sizes) // n))
    if period == 1:
        return Stacked(len(sizes))
    return Interleaved(tuple(sizes[:period]), len(sizes) // period) if period < len(sizes) else Split(tuple(sizes))


def described(blocks: Sequence[Block], columns: int) -> str:
    """Such as "query: 12 heads of 64 x 768" and "query, key, value: 12 + 4 + 4 heads of 64 x 768"."""
    parts = list(dict.fromkeys(block.role for block in blocks))
    groups = [[block for block in blocks if block.role == part] for part in parts]
    named = ", ".join(part or "other" for part in parts)
    by_size = [(size, [str(len(g)) for g in same]) for size, same in groupby(groups, key=lambda g: g[0].size)]
    return f"{named}: " + ", ".join(f"{' + '.join(counts)} heads of {size} x {columns}" for size, counts in by_size)


def _role_of(site: Site) -> str:
    """query, key or value by the layer's name; "several" for a fused one; empty for other names."""
    name = site.path[-2] if site.path[-1] in GENERIC and len(site.path) > 1 else site.path[-1]
    fused = named_like_fused(replace(site, chain=((name, nn.Module()), (name, site.module)))) or ""
    named = role(name)
    return named if named not in ("", "gate") else "several" if "key" in fused else ""


def _agreeing(uses: Sequence[WeightRows], rows: int, numbers: _Numbers) -> list[Block]:
    """The finest blocks that agree with the attributes: a rotation may divide a head further."""
    finest: list[Block] = []
    for level in range(max(len(use.axes) for use in uses)):
        blocks = _tiled([_coarser(use, level) for use in uses], rows)
        finest = finest or blocks
        several = any(sum(block.role == part for block in blocks) > 1 for part in {block.role for block in blocks})
        if blocks and numbers.agree(blocks) and (several or not level):
            attended = any(block.role in ("query", "key", "value") for block in blocks)
            return blocks if several and attended else []
    if finest:
        raise Unknown(f"the module has {numbers}, and its code makes blocks of {finest[0].size} rows")
    raise Unknown("its code does not divide the rows into consecutive blocks")


def _coarser(use: WeightRows, levels: int) -> WeightRows:
    """With the last dimension joined with those before it, if these are consecutive rows."""
    for _ in range(levels):
        if len(use.axes) < 2 or use.axes[-2].stride != use.axes[-1].size * use.axes[-1].stride:
            break
        outer, inner = use.axes[-2:]
        use = replace(use, dims=(*use.axes[:-2], Axis(outer.size * inner.size, inner.stride)))
    return use


def _tiled(uses: Iterable[WeightRows], rows: int) -> list[Block]:
    """The blocks of rows along the last dimensions; empty if they are not consecutive, or do not cover all rows."""
    blocks: dict[tuple[int, int], Block] = {}
    for use, parts in _joined(use for use in uses if any(use.dims[-2:])):
        *outer, inner = use.axes
        if inner.stride != 1:
            return []
        for steps in product(*(range(axis.size) for axis in outer)):
            first = use.first + sum(n * axis.stride for n, axis in zip(steps, outer, strict=True))
            known = blocks.get((first, inner.size))
            if known is None or not known.role:
                blocks[first, inner.size] = Block(first, inner.size, use.role, parts, use.normed)
    ordered = sorted(blocks, key=lambda block: (block[0], -block[1]))
    finest = [a for a, b in zip(ordered, [*ordered[1:], (rows, 0)], strict=True) if sum(a) <= b[0]]
    ends = [0, *(sum(block) for block in finest)]
    whole = [block[0] for block in finest] == ends[:-1] and ends[-1] == rows
    return [blocks[block] for block in finest] if whole else []


def _joined(uses: Iterable[WeightRows]) -> list[tuple[WeightRows, tuple[int, ...]]]:
    """With neighbouring parts of a head, such as the rotated and the other rows of a query, joined; and their sizes."""
    joined: list[tuple[WeightRows, tuple[int, ...]]] = []
    for use in sorted(uses, key=lambda use: (str(use.axes[:-1]), use.first, -use.axes[-1].size)):
        last, parts = joined[-1] if joined else (None, ())
        if (
            last is not None
            and (last.axes[:-1], last.role) == (use.axes[:-1], use.role)
            and use.role
            and last.first + last.axes[-1].size == use.first
            and last.axes[-1].stride == use.axes[-1].stride == 1
        ):
            dims = (*last.axes[:-1], Axis(last.axes[-1].size + use.axes[-1].size))
            joined[-1] = replace(last, dims=dims), (*parts, use.axes[-1].size)
        else:
            joined.append((use, (use.axes[-1].size,)))
    return joined
