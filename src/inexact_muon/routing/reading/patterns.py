"""Patterns of einops: "b n (h d) -> b h n d"."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from inexact_muon.routing.reading.rows import Axis, Untracked, WeightRows, cut, merged

GROUP = re.compile(r"\(([^)]*)\)|(\S+)")


def _groups(side: str) -> list[list[str]]:
    return [(inside or single).split() for inside, single in GROUP.findall(side)]


def rearranged(rows: WeightRows, pattern: str, sizes: Mapping[str, int]) -> WeightRows:
    """rearrange(x, pattern, **sizes)"""
    inputs, arrow, outputs = pattern.partition("->")
    before, after = _groups(inputs), _groups(outputs)
    if not arrow or len(before) < len(rows.dims):
        raise Untracked
    axes: dict[str, Axis | None] = {}
    foreign = (None,) * (len(before) - len(rows.dims))
    for names, axis in zip(before, (*foreign, *rows.dims), strict=True):
        parts = [None] * len(names) if axis is None else cut(axis, [sizes.get(name) for name in names])
        axes.update(zip(names, parts, strict=True))
    if any(name not in axes for names in after for name in names):
        raise Untracked
    return replace(rows, dims=tuple(merged([axes[name] for name in names]) for names in after), open=False)
