"""A matrix for each head of attention: query, key and value by rows, output projections by columns if asked.

The heads are read from the code that computes with a layer's output: view(batch, time, heads, size), chunk, split,
rearrange. Attributes such as `num_heads` must agree where there are some.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from torch import nn

from inexact_muon.routing.blocks import Block, coarser, described, sides, tiled, view_of
from inexact_muon.routing.flow import Code
from inexact_muon.routing.layers import Site, layer_of, role
from inexact_muon.routing.layouts import HEAD_DIM, HEADS, KV_HEADS, QKV, parts_by_name
from inexact_muon.routing.reading.rows import WeightRows
from inexact_muon.routing.roles import Decision
from inexact_muon.views import Flatten, Stacked, Transposed

Heads = bool | Literal["all"]
"""Whether query, key and value are a matrix for each head; "all": output projections too."""

SIZES = (
    *(*HEAD_DIM, "d_kv", "key_value_proj_dim", "qk_head_dim", "v_head_dim", "qk_nope_head_dim", "key_dim", "val_dim"),
    *("head_k_dim", "head_v_dim", "attention_head_dim"),
)
"""Attributes that hold the rows of a head."""

COUNTS = (*HEADS, *KV_HEADS, "num_k_heads", "num_v_heads")
"""Attributes that hold a number of heads."""


class Unknown(Exception):
    """A layer of attention whose heads are not known, and why."""


def per_head(decided: Sequence[tuple[Site, Decision]], heads: Heads) -> list[Decision]:
    """The decisions with views by head where the layers are attention's and the heads are known."""
    attention = Attention()
    decisions = [attention.by_rows(site, decision) for site, decision in decided]
    if heads != "all":
        return decisions
    return [attention.by_columns(site, new) for (site, _), new in zip(decided, decisions, strict=True)]


def heads_of(decided: Sequence[tuple[Site, Decision]]) -> Iterator[tuple[Site, Decision, list[Block]]]:
    """The layers of attention with known heads, and these."""
    attention = Attention()
    for site, old in decided:
        decision = attention.by_rows(site, old)
        if id(site.parameter) in attention.blocks:
            yield site, decision, attention.blocks[id(site.parameter)]


class Attention:
    """Heads of the attention layers of a model.

    Attributes:
        blocks: id of a parameter -> its heads, once `by_rows` was called.
    """

    def __init__(self) -> None:
        self.blocks: dict[int, list[Block]] = {}
        self._code = Code()

    def by_rows(self, site: Site, decision: Decision) -> Decision:
        """A matrix for each head of query, key and value; unsure if it is one of these and the heads are not known."""
        if decision.role not in ("hidden", "conv") or (not site.path and layer_of(site.module).linear is None):
            return decision
        try:
            if isinstance(site.module, nn.MultiheadAttention):
                heads = _multihead(site.module, site.own)
            elif isinstance(decision.view, Flatten) and parts_by_name(site.path[-1] if site.path else ""):
                raise Unknown("a convolution whose heads are not known")
            elif (sides := layer_of(site.module).linear) is None or site.parameter.ndim != 2 or site.own != "weight":
                return decision
            else:
                heads = self._heads(site, sides[0])
        except Unknown as doubt:
            why = f"{decision.why}; not by head: {doubt}"
            return replace(decision, why=why, sure=False, unknown_heads=str(doubt))
        if not heads:
            return decision
        self.blocks[id(site.parameter)] = heads
        view = view_of(heads)
        view = Transposed(view) if isinstance(decision.view, Transposed) else view
        columns = site.parameter.numel() // sum(block.size for block in heads)
        return replace(decision, view=view, why=f"a matrix per head, {described(heads, columns)}", sure=True)

    def by_columns(self, site: Site, decision: Decision) -> Decision:
        """A matrix for each head of an output projection: the layer that takes values times attention."""
        sides = layer_of(site.module).linear
        if sides is None or decision.role != "hidden" or id(site.parameter) in self.blocks or len(site.chain) < 2:
            return decision
        direct, normed = self._givers(site)
        if isinstance(site.parent, nn.MultiheadAttention):
            direct = _multihead(site.parent, "in_proj_weight")
        sizes = {block.size for block in direct if block.role == "value"}
        count = sum(block.role == "query" for block in (*direct, *normed))
        if len(sizes) != 1 or count < 2 or count * min(sizes) != sides[1]:
            return decision
        by_columns = Stacked(count, transposed=True)
        view = by_columns if isinstance(decision.view, Transposed) else Transposed(by_columns)
        return replace(
            decision, view=view, why=f"a matrix per head, output: {count} heads of {sides[0]} x {min(sizes)}"
        )

    def _heads(self, site: Site, rows: int) -> list[Block]:
        """The heads in the weight of a linear layer, in order; empty if it is none of attention, or has no heads.

        Raises:
            Unknown: it is one of attention, and the number of heads is not known.
        """
        part = role(site.label).replace("gate", "")
        uses = [replace(use, role=use.role or part) for use in self._code.uses(site)]
        divided = [use for use in uses if use.divided]
        named = part or "key" in parts_by_name(site.label)
        if not named and not (divided and all(use.role for use in divided)):
            return []
        numbers = _Numbers.of(site)
        if not uses:
            raise Unknown("what is done with its output could not be read")
        if not divided:
            if max(numbers.heads, default=1) > 1 and any(not use.fed and use.index.size == rows for use in uses):
                raise Unknown(f"the module has {numbers}, and its code does not divide this output")
            return []
        return _agreeing(uses, rows, numbers)

    def _givers(self, site: Site) -> tuple[list[Block], list[Block]]:
        """Heads of linear layers near this one whose output it takes, and that it takes after a normalisation."""
        for module, flow in self._code.around(site):
            givers = [layer for layer in module.modules() if id(layer) in flow.consumers]
            direct = {id(layer) for layer in givers if id(site.module) in flow.consumers[id(layer)]}
            if direct:
                normed = {id(layer) for layer in givers if direct & flow.consumers[id(layer)]} - direct
                linear = [layer for layer in givers if layer_of(layer).linear is not None]
                near, far = (
                    [b for layer in linear if id(layer) in keys for b in self.blocks.get(id(layer.weight), ())]
                    for keys in (direct, normed)
                )
                return near, far
        return [], []


def _multihead(module: nn.MultiheadAttention, own: str) -> list[Block]:
    """The heads of nn.MultiheadAttention's projections."""
    names = {"q_proj_weight": ("query",), "k_proj_weight": ("key",), "v_proj_weight": ("value",)}
    parts = names.get(own, QKV if own == "in_proj_weight" else ())
    size, count = module.head_dim, module.num_heads
    if count == 1:
        return []
    return [Block((k * count + i) * size, size, part) for k, part in enumerate(parts) for i in range(count)]


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


def _agreeing(uses: Sequence[WeightRows], rows: int, numbers: _Numbers) -> list[Block]:
    """The finest blocks that agree with the attributes: a rotation may divide a head further."""
    finest: list[Block] = []
    for level in range(max(sides(use.index).ndim for use in uses)):
        blocks = tiled([coarser(use, level) for use in uses if max(use.index.shape[-2:]) > 1], rows)
        finest = finest or blocks
        several = any(sum(block.role == part for block in blocks) > 1 for part in {block.role for block in blocks})
        if blocks and numbers.agree(blocks) and (several or not level):
            attended = any(block.role in QKV for block in blocks)
            return blocks if several and attended else []
    if finest:
        raise Unknown(f"the module has {numbers}, and its code makes blocks of {finest[0].size} rows")
    raise Unknown("its code does not divide the rows into consecutive blocks")
