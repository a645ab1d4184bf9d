"""Layouts of fused weights: query, key and value; gate and up; parts of a state space model.

A table of names with functions that determine the rows from attributes and configs around the layer and from the layer
that takes its output. A layout is used only if its numbers fit. `tests/test_layouts_compute.py` checks each against
its module.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from inexact_muon.routing.flow import Code
from inexact_muon.routing.layers import Site, layer_of
from inexact_muon.views import Split, Transposed, View

HEADS = ("num_heads", "n_heads", "n_head", "num_attention_heads", "heads", "nhead", "nheads")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "n_kv_head", "num_query_groups", "n_local_heads")
HEAD_DIM = ("head_dim", "attention_head_size", "head_size", "hidden_size_per_attention_head", "dim_head", "d_head")
QKV, KV, GATED = ("query", "key", "value"), ("key", "value"), ("gate", "up")

Rows = Callable[[Site, int, int], Split | None]


@dataclass(frozen=True)
class Known:
    """A row of the table.

    Attributes:
        names: layer names, in lower case.
        rows: (site, rows, columns) -> the cut, or None if the numbers do not fit.
        parts: what the weight is made of, for `explain`.
        must: whether a layer of this name that does not fit is reported as unsure.
    """

    names: tuple[str, ...]
    rows: Rows
    parts: tuple[str, ...]
    must: bool = True


def fused(site: Site, rows: int, columns: int, code: Code) -> tuple[Split | None, str] | None:
    """The cut of a weight with this many rows and columns, and its parts; None if it is not known to be fused.

    There is no cut if the name is known and the numbers do not fit.
    """
    layer, name = site, site.label.lower()
    if site.levels > 1:
        beside = site.parent.children() if site.parent is not None else ()
        linear = sum(layer_of(child).linear is not None for child in beside)
        if "glu" in type(site.parent).__name__.lower() and rows % 2 == 0 and linear == 1:
            return Split(2), ", ".join(GATED)
        site = site.up(1, site.own)
    for layout in LAYOUTS:
        if name in layout.names:
            cut = layout.rows(site, rows, columns)
            several = cut is None or (cut.groups == 1 and (site.number(*HEADS) or 1) > 1)
            if several and layout.parts in (QKV, KV):
                cut = code.cut(layer, rows) or cut  # sizes do not tell whether each head has its q, k and v in turn
            if cut is not None or layout.must:
                return cut, ", ".join(layout.parts)
    return None


def parts_by_name(name: str) -> tuple[str, ...]:
    """The parts of a fused weight that a layer's name suggests, such as query, key, value; none for other names."""
    return next((layout.parts for layout in LAYOUTS if layout.must and name.lower() in layout.names), ())


def _heads(site: Site, columns: int) -> tuple[int, int, int]:
    """(heads, key-value heads, rows per head), or zeros if the number of heads is not known"""
    heads, kv, size = site.number(*HEADS), site.number(*KV_HEADS), site.number(*HEAD_DIM)
    if heads is None or heads < 1:
        return 0, 0, 0
    return heads, kv or heads, size or columns // heads


def equal(site: Site, rows: int, columns: int) -> Split | None:
    """[q; k; v], equal or by the numbers of heads.

    MiniMax's lightning attention has [q; k; v] of each head in turn, behind an activation that hides it.
    """
    heads, kv, size = _heads(site, columns)
    if kv != heads and (heads + 2 * kv) * size == rows:
        return Split((heads * size, kv * size, kv * size))
    if rows == 3 * columns or (heads and rows % (3 * heads) == 0):
        return Split(3, heads or 1) if "Lightning" in type(site.parent).__name__ else Split(3)
    return None


def attended(site: Site, rows: int, columns: int) -> Split | None:
    """[q; k; v] of a layer whose name does not tell."""
    return equal(site, rows, columns) if "attention" in type(site.parent).__name__.lower() else None


def by_group(site: Site, rows: int, columns: int) -> Split | None:
    """[its q's; k; v] of each key-value head in turn, as of GPT-NeoX, BLOOM and Megatron."""
    heads, kv, size = _heads(site, columns)
    if not heads or heads % kv or (heads + 2 * kv) * size != rows:
        return None
    return Split((heads // kv * size, size, size), kv) if kv != heads else Split(3, heads)


def key_value(site: Site, rows: int, columns: int) -> Split | None:
    """[k; v]"""
    heads, kv, size = _heads(site, columns)
    return Split(2) if rows in (2 * heads * size, 2 * kv * size, 2 * columns) else None


def compressed(site: Site, rows: int, columns: int) -> Split | None:
    """Latent attention: [latent; rotary key] going down, [k; v] by head going up."""
    heads, rank = site.number(*HEADS), site.number("kv_lora_rank")
    key, value, rotary = (site.number(n) for n in ("qk_nope_head_dim", "v_head_dim", "qk_rope_head_dim"))
    if rank and rotary and rows == rank + rotary:
        return Split((rank, rotary))
    return Split((key, value), heads) if heads and key and value and rows == heads * (key + value) else None


def halves(site: Site, rows: int, columns: int) -> Split | None:
    """[gate; up], if another layer of the module takes half of the rows."""
    beside = [child for _, module in site.chain[-3:-1] for child in module.children() if child is not site.module]
    return Split(2) if gated(rows, [sides[1] for child in beside if (sides := layer_of(child).linear)]) else None


def gated(rows: int, consumers: Collection[int | None]) -> bool:
    """Whether layers that take inputs of these widths take the product of two halves of so many rows."""
    return rows % 2 == 0 and rows // 2 in consumers and rows not in consumers


def state_space(site: Site, rows: int, columns: int) -> Split | None:
    """Mamba's [x; z], Mamba 2's [z; x; B; C; dt], a short convolution's thirds, or the module's own `in_split`."""
    split = getattr(site.parent, "in_split", None)
    if isinstance(split, list | tuple) and sum(split) == rows:
        return Split(tuple(split))
    inner, state = site.number("intermediate_size", "d_inner"), site.number("ssm_state_size", "d_state")
    kind = type(site.parent).__name__.lower()
    if inner and state and ("mamba" in kind or "mixer" in kind):
        if rows == 2 * inner:
            return Split(2)
        groups, heads = site.number("n_groups", "ngroups"), site.number("num_heads", "nheads")
        if groups and heads and rows == 2 * (inner + groups * state) + heads:
            return Split((inner, inner, groups * state, groups * state, heads))
        return None
    return Split(3) if rows == 3 * columns and "shortconv" in kind else None


def selection(site: Site, rows: int, columns: int) -> Split | None:
    """Mamba's [dt; B; C]."""
    rank, state = site.number("time_step_rank", "dt_rank"), site.number("ssm_state_size", "d_state")
    return Split((rank, state, state)) if rank and state and rows == rank + 2 * state else None


def delta_net(site: Site, rows: int, columns: int) -> Split | None:
    """Gated delta nets: [q; k; v; z] and [b; a] by key head, or [q; k; v]."""
    names = ("num_k_heads", "num_v_heads", "head_k_dim", "head_v_dim")
    keys, values, key, value = (site.number(name) for name in names)
    if not (keys and values and key and value) or values % keys:
        return None
    ratio = values // keys
    if rows == keys * (2 * key + 2 * ratio * value):
        return Split((key, key, ratio * value, ratio * value), keys)
    if rows == 2 * keys * key + values * value:
        return Split((keys * key, keys * key, values * value))
    return Split((ratio, ratio), keys) if rows == 2 * values else None


LAYOUTS = (
    Known(("query_key_value", "linear_qkv"), by_group, QKV),
    Known(("qkv", "qkv_proj", "wqkv", "to_qkv", "qkv_linear", "attn_qkv", "qkv_projection", "c_attn"), equal, QKV),
    Known(("kv", "to_kv", "kv_proj", "c_kv", "wkv", "linear_kv"), key_value, KV),
    Known(("kv_b_proj", "kv_a_proj_with_mqa", "wkv_b", "wkv_a"), compressed, KV),
    Known(("gate_up_proj", "up_gate_proj", "gate_and_up_proj", "gate_up", "w12", "w13"), halves, GATED),
    Known(
        ("wi", "weights_in", "dense_h_to_4h", "input_linear", "fc1", "fc_in", "c_fc", "linear_fc1", "w1", "up_proj"),
        halves,
        GATED,
        must=False,
    ),
    Known(("in_proj",), state_space, ("parts of the input projection",), must=False),
    Known(("in_proj",), attended, QKV, must=False),
    Known(("x_proj",), selection, ("dt", "B", "C"), must=False),
    Known(("in_proj_qkvz", "in_proj_ba", "in_proj_qkv"), delta_net, ("query", "key", "value and gates")),
)


def within(cut: Split, view: View) -> View:
    """The cut of the matrix inside a whole or transposed view."""
    return Transposed(cut) if isinstance(view, Transposed) else cut
