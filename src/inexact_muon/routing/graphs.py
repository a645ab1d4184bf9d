"""Weights of graph networks: one matrix, or one for each relation, basis or layer, applied as x @ weight."""

from __future__ import annotations

import re

from inexact_muon.routing.layers import Site
from inexact_muon.views import Transposed, View, Whole

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
