"""A matrix for each head of attention: query, key and value by rows, output projections by columns if asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from torch import nn

from inexact_muon.routing.attention import Attention, Block, Unknown, described, view_of
from inexact_muon.routing.layers import Site, linear_sides
from inexact_muon.routing.layouts import named_like_fused
from inexact_muon.routing.roles import Decision
from inexact_muon.views import Flatten, Stacked, Transposed, View

Heads = bool | Literal["all"]
"""Whether query, key and value are a matrix for each head; "all": output projections too."""

Finding = tuple[Site, Decision]


def check_heads(heads: Heads) -> None:
    """Raises on other values."""
    if heads not in (True, False, "all"):
        raise ValueError(f'heads must be True, False or "all" (with output projections), got {heads!r}')


def per_head(findings: Sequence[Finding], heads: Heads) -> list[Decision]:
    """The decisions with views by head where the layers are attention's and the heads are known."""
    attention, blocks = Attention(), dict[int, list[Block]]()
    decisions = [_by_rows(site, finding, attention, blocks) for site, finding in findings]
    if heads != "all":
        return decisions
    sites = (site for site, _ in findings)
    return [_by_columns(*pair, attention, blocks) for pair in zip(sites, decisions, strict=True)]


def heads_of(findings: Sequence[Finding]) -> Iterator[tuple[Site, Decision, list[Block]]]:
    """The layers of attention with known heads, and these."""
    attention, blocks = Attention(), dict[int, list[Block]]()
    for site, finding in findings:
        decision = _by_rows(site, finding, attention, blocks)
        if id(site.parameter) in blocks:
            yield site, decision, blocks[id(site.parameter)]


def _by_rows(site: Site, finding: Decision, attention: Attention, blocks: dict[int, list[Block]]) -> Decision:
    """A matrix for each head of query, key and value; unsure if it is one of these and the heads are not known."""
    if finding.role not in ("hidden", "conv") or (not site.path and linear_sides(site.module) is None):
        return finding
    if isinstance(site.module, nn.MultiheadAttention):
        heads = _multihead(site)
    elif isinstance(finding.view, Flatten):
        doubt = "a convolution whose heads are not known" if named_like_fused(site) else ""
        return _unknown(finding, doubt) if doubt else finding
    elif (sides := linear_sides(site.module)) is None or site.parameter.ndim != 2 or site.own != "weight":
        return finding
    else:
        try:
            heads = attention.blocks(site, sides[0])
        except Unknown as doubt:
            return _unknown(finding, str(doubt))
    if not heads:
        return finding
    blocks[id(site.parameter)] = heads
    columns = site.parameter.numel() // sum(block.size for block in heads)
    view = _oriented(view_of(heads), finding.view)
    why = f"a matrix per head, {described(heads, columns)}"
    return replace(finding, view=view, why=why, sure=True)


def _multihead(site: Site) -> list[Block]:
    """The heads of nn.MultiheadAttention's projections."""
    module = site.module
    assert isinstance(module, nn.MultiheadAttention)
    names = {"q_proj_weight": ("query",), "k_proj_weight": ("key",), "v_proj_weight": ("value",)}
    parts = names.get(site.own, ("query", "key", "value") if site.own == "in_proj_weight" else ())
    size, count = module.head_dim, module.num_heads
    if count == 1:
        return []
    return [Block((k * count + i) * size, size, part) for k, part in enumerate(parts) for i in range(count)]


def _by_columns(site: Site, finding: Decision, attention: Attention, blocks: Mapping[int, Sequence[Block]]) -> Decision:
    """A matrix for each head of an output projection: the layer that takes values times attention."""
    sides = linear_sides(site.module)
    if sides is None or finding.role != "hidden" or id(site.parameter) in blocks or len(site.chain) < 2:
        return finding
    direct, normed = ([b for layer in g for b in blocks.get(id(layer.weight), ())] for g in attention.givers(site))
    if isinstance(site.parent, nn.MultiheadAttention):
        direct = _multihead(site.up(1, "in_proj_weight"))
    sizes = {block.size for block in direct if block.role == "value"}
    count = sum(block.role == "query" for block in (*direct, *normed))
    if len(sizes) != 1 or count < 2 or count * min(sizes) != sides[1]:
        return finding
    stored = isinstance(finding.view, Transposed)
    by_columns = Stacked(count, transposed=True)
    why = f"a matrix per head, output: {count} heads of {sides[0]} x {min(sizes)}"
    return replace(finding, view=by_columns if stored else Transposed(by_columns), why=why)


def _oriented(view: View, old: View) -> View:
    return Transposed(view) if isinstance(old, Transposed) else view


def _unknown(finding: Decision, doubt: str) -> Decision:
    why = f"{finding.why}; not by head: {doubt}"
    return replace(finding, why=why, sure=False, unknown_heads=doubt)
