"""Mixtures of experts: stacked expert matrices and routers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from torch import nn

from inexact_muon.routing.layers import Site, layer_of
from inexact_muon.routing.layouts import gated, within
from inexact_muon.views import Split, Stacked, Transposed, View, Whole

COUNT = (
    *("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts", "n_experts", "num_routed_experts"),
    "experts",
)
HIDDEN = ("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "input_dim", "input_size", "hidden_dim")
FUSED = ("gate_up_proj", "gate_up", "w13")
UP = ("w1", "w3", "v1", "up", "gate", "fc1", "c_fc", "wi", "up_proj", "gate_proj", "w_in", *FUSED)
DOWN = ("w2", "down", "fc2", "c_proj", "wo", "down_proj", "w_out")
ROUTERS = ("gate", "gating", "wg", "gate_linear")


def stack(site: Site) -> tuple[View, bool] | None:
    """(view, whether it is certain) of a parameter that holds one matrix per expert; None for other parameters."""
    shape, module = tuple(site.parameter.shape), site.module
    if len(shape) == 2:
        return _stacked_rows(site)
    if len(shape) != 3:
        return None
    # The number of experts is told by an attribute, a router, or, if neither is there, the class name.
    count, routed = site.number(*COUNT), [sides[1] for sides in _routers(site) if sides[0] == shape[0]]
    if count != shape[0] and not routed and not (count is None and "expert" in site.kind.lower()):
        return None
    sides = tuple(getattr(module, name, None) for name in ("output_size", "input_size"))
    if sides == shape[1:] or sides == shape[:0:-1]:
        view: View = Whole() if sides == shape[1:] else Transposed()
        consumers = {getattr(child, "input_size", None) for child in (site.parent or module).children()}
        return (within(Split(2), view) if gated(sides[0], consumers) else view), True
    return _by_width(site, shape, routed[0] if routed else site.number(*HIDDEN))


def _by_width(site: Site, shape: tuple[int, ...], hidden: int | None) -> tuple[View, bool] | None:
    """Orientation from the module's `is_transposed`, or from the side that equals the model's width `hidden`."""
    name = site.own.lower().removesuffix("_weight").removesuffix("_weights")
    known = name in UP or name in DOWN
    transposed = getattr(site.module, "is_transposed", None)
    if not isinstance(transposed, bool):
        wide = [side == hidden for side in shape[1:]]
        if not known or wide[0] == wide[1]:
            return Whole(), known and shape[1] == shape[2] and name not in FUSED
        transposed = wide[0] if name in UP else wide[1]
    view: View = Transposed() if transposed else Whole()
    rows = shape[2] if transposed else shape[1]
    if name in FUSED:
        if rows % 2:
            return view, False
        interleaved = getattr(site.module, "is_concatenated", True) is False
        return within(Split((1, 1), rows // 2) if interleaved else Split(2), view), True
    return view, known


def _stacked_rows(site: Site) -> tuple[View, bool] | None:
    """DBRX and MegaBlocks: (experts * inner, hidden); down projections are stored as (in, out)."""
    rows, columns = site.parameter.shape
    count, hidden, name = site.number(*COUNT), site.number(*HIDDEN), site.own.lower()
    if "expert" not in site.kind.lower() or not count or rows % count or columns != hidden:
        return None
    if name not in UP and name not in DOWN:
        return None
    return Stacked(count, transposed=name in DOWN), True


def _routers(site: Site) -> Iterator[tuple[int, int]]:
    """(out, in) of the routers in the module and its parent."""
    for _, module in site.chain[-2:][::-1]:
        for name, child in module.named_children():
            if "router" in name.lower() or name.lower() in ROUTERS:
                weight = getattr(child, "weight", None)
                raw = tuple(weight.shape) if isinstance(weight, nn.Parameter) else ()
                sides = layer_of(child).linear or raw
                if len(sides) == 2:
                    yield sides


NAMES = re.compile(r"(\w+_)?(weights?|root|bas[ie]s)\d*")
INPUTS = ("in_channels", "channels", "hidden_channels", "out_channels")
OUTPUTS = ("out_channels", "channels", "hidden_channels")


def channel_weight(site: Site) -> View | None:
    """View of a parameter (..., in, out) of a layer with channels (torch_geometric); None for other parameters.

    Leading dimensions count relations, bases, stacks or, with blocks on the diagonal, relations and blocks.
    """
    module, shape = site.module, tuple(site.parameter.shape)
    if hasattr(module, "kernel_size") or not NAMES.fullmatch(site.own) or len(shape) < 2:
        return None
    heads = getattr(module, "heads", 1)
    into, out = (_numbers(site, names) for names in (INPUTS, OUTPUTS))
    wide = {count * heads for count in out if isinstance(heads, int)} | set(out)
    blocks = shape[1] if len(shape) == 4 else 1
    for rows, columns in ((shape[-2], shape[-1]), (shape[-2] * blocks, shape[-1] * blocks)):
        if rows in into[:1] and columns in wide:
            return Transposed()
        if columns in into[:1] and rows in wide:
            return Whole()
        if rows == columns and rows in wide:
            return Transposed()
    return None


def _numbers(site: Site, names: tuple[str, ...]) -> list[int]:
    values = (getattr(site.module, name, None) for name in names)
    return [x[0] if isinstance(x, tuple) else x for x in values if isinstance(x, int) or (isinstance(x, tuple) and x)]
