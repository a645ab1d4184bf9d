"""Values that a checkpoint may hold without harm, and that no reader expects: hypothesis strategies of them."""

from __future__ import annotations

import copy
from typing import Any

import torch
from hypothesis import strategies as st

TEXTS = (
    "",
    "[/b]",
    "[bold]x",
    "\x1b[31m",
    "a\nb",
    "\ud800",
    "0.weight",
    "x" * 3000,
    "whole",
    "flatten",
    "split(rows=3)",
)
BALLS = (
    *("spectral", "sign", "spectral(polar=jordan(steps=5))", "spectral(polar=auto)", "spectral(", "spectral(polar=)"),
    *("spectral(polar=polar-express(steps=-1))", "spectral(polar=polar-express(steps=1000000))", "nuclear", "-" * 3000),
    *("spectral(polar=jordan(steps=nan))", "spectral(polar=zolotarev(poles=0))", "perturbed(inner=sign, delta=1)"),
    *("split(rows=0)", "split(rows=-1)", "split(rows=(1, 2))", "split(rows=1e9)", "flatten(", "split", "none"),
)
KEYS = (
    *("state", "param_groups", "params", "param_names", "momentum_buffer", "momentum", "step", "ball", "view", "lr"),
    *("ns_steps", "ns_coefficients", "algorithm", "betas", "use_muon", "exp_avg", "exp_avg_sq", "optimizer", "skipped"),
)
NUMBERS = (0, 1, -1, 3, True, 2.5, -0.0, 1e-320, 1e308, float("nan"), float("inf"), 10**30, -(2**63))


def tensors() -> st.SearchStrategy[torch.Tensor]:
    """Tensors of every kind that torch.save writes and weights_only reads."""
    base = torch.arange(12.0).reshape(3, 4) + 1.0
    found = [base.to(dtype) for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int8)]
    found += [base.bool(), base.to(torch.complex64), base.to(torch.float8_e4m3fn), torch.tensor(1.0), torch.tensor(7)]
    found += [
        torch.zeros(0, 3),
        torch.zeros(3, 0),
        torch.zeros(3, 4),
        torch.ones(1, 1),
        torch.ones(1, 5),
        torch.ones(5),
    ]
    found += [base * torch.nan, base * torch.inf, base * 1e-38, base.double() * 1e300, base.double() * 1e-310]
    found += [base.t(), base[:, ::2], base.expand(2, 3, 4), torch.tensor(1.0).expand(1 << 20, 1 << 20)]
    found += [torch.randn(2, 3, 4, 5), torch.randn(2, 2, 2, 2, 2), torch.eye(4), torch.ones(4, 4), torch.randn(6, 4)]
    found += [base.to_sparse(), base.to("meta"), torch.nn.Parameter(base), torch.ones(4, 3) * 1e-20]
    return st.sampled_from(found)


def values() -> st.SearchStrategy[Any]:
    """Anything that weights_only lets through."""
    leaves = st.one_of(
        st.none(), st.sampled_from(NUMBERS), st.sampled_from(TEXTS + BALLS), st.binary(max_size=3), tensors()
    )
    keys = st.one_of(st.sampled_from(KEYS), st.sampled_from(TEXTS), st.integers(-1, 3))
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.lists(inner, max_size=2).map(tuple),
            st.dictionaries(keys, inner, max_size=4),
        ),
        max_leaves=6,
    )


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value inside of nested dicts and lists."""
    found = [path]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found += places(inner, (*path, key))
    return found


@st.composite
def mutated(draw: st.DrawFn, honest: Any) -> Any:
    """An honest value with one to three changes: something replaced, left out, renamed, moved or repeated."""
    result = copy.deepcopy(honest)
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(places(result)))
        if not path:
            result = draw(st.one_of(values(), st.just([result]), st.just({"optimizer": result})))
            continue
        holder = result
        for key in path[:-1]:
            holder = holder[key]
        key, how = path[-1], draw(st.sampled_from(("replace", "replace", "drop", "rename", "wrap", "repeat")))
        if how == "replace":
            holder[key] = draw(values())
        elif how == "wrap":
            holder[key] = draw(st.sampled_from(([holder[key]], {"state": holder[key]}, (holder[key],))))
        elif isinstance(holder, list):
            holder.append(holder[key]) if how == "repeat" else holder.pop(key)
        else:
            moved = holder[key] if how == "repeat" else holder.pop(key)
            if how != "drop":
                holder[draw(st.one_of(st.sampled_from(KEYS + TEXTS), st.integers(0, 9)))] = moved
    return result
