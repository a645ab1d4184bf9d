"""Which parameter gets what: by the type of its module, then by shape, then by name; and why.

hidden matrices          LMO, as they are; stacks of expert matrices likewise
convolution kernels      LMO on out x (in * kernel)
fused query-key-value    LMO on each block of rows
embeddings, heads, norms, biases, depthwise kernels, vectors      AdamW
"""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from inexact_muon.views import Flatten, Split, View, Whole

HEADS = ("head", "lm_head", "classifier", "output", "logits", "unembed", "embed_out")
FUSED = ("qkv", "c_attn", "wqkv", "query_key_value", "qkv_proj", "in_proj")
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True)
class Route:
    """What one parameter gets, and why."""

    name: str
    parameter: nn.Parameter
    algorithm: str
    view: View
    why: str


def routes(
    model: nn.Module,
    rules: Sequence[tuple[str, str]] = (),
    split: Mapping[str, int | tuple[int, ...]] | None = None,
) -> list[Route]:
    """One route for each parameter that requires a gradient; a tied weight has one.

    Args:
        rules: (glob on the parameter's name, "lmo" or "adamw"), first match wins, before anything else. A glob that
            matches nothing is an error, here and in split.
        split: glob on the parameter's name -> rows of its blocks. Fused query-key-value weights with three square
            blocks are recognised by name without it; `{}` switches that off.
    """
    for glob, algorithm in rules:
        if algorithm not in ("lmo", "adamw"):
            raise ValueError(f"rules: {glob!r} asks for {algorithm!r}; say lmo or adamw")
    names = [name for name, _ in model.named_parameters()]
    for what, glob in [("rules", glob) for glob, _ in rules] + [("split", glob) for glob in split or ()]:
        if not any(fnmatch.fnmatchcase(name, glob) for name in names):
            near = (difflib.get_close_matches(glob, names, n=1, cutoff=0.0) or ["none"])[0]
            raise ValueError(
                f"{what}: {glob!r} matches no parameter (one that is tied has its first name); near: {near}"
            )
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)}
    found = list(_owned(model))
    last = next((id(p) for _, p, m in reversed(found) if isinstance(m, nn.Linear) and p.ndim == 2), None)
    made = []
    for name, parameter, module in found:
        algorithm, view, why = _decide(name, parameter, module, embeddings, last, split)
        forced = next(((g, a) for g, a in rules if fnmatch.fnmatchcase(name, g)), None)
        if forced is not None:
            algorithm, why = forced[1], f"rule {forced[0]!r}"
            if algorithm == "lmo" and parameter.ndim < 2:
                raise ValueError(f"rules: {name} has shape {tuple(parameter.shape)} and cannot get a matrix LMO")
        made.append(Route(name, parameter, algorithm, view if algorithm == "lmo" else Whole(), why))
    return made


def _owned(model: nn.Module) -> Iterator[tuple[str, nn.Parameter, nn.Module]]:
    """Trainable parameters with their module, each once."""
    seen: set[int] = set()
    for prefix, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) not in seen and parameter.requires_grad:
                seen.add(id(parameter))
                yield (f"{prefix}.{name}" if prefix else name), parameter, module


def _decide(
    name: str,
    parameter: nn.Parameter,
    module: nn.Module,
    embeddings: set[int],
    last: int | None,
    split: Mapping[str, int | tuple[int, ...]] | None,
) -> tuple[str, View, str]:
    shape = tuple(parameter.shape)
    kind = type(module).__name__
    if id(parameter) in embeddings:
        tied = not isinstance(module, nn.Embedding | nn.EmbeddingBag)
        return "adamw", Whole(), "tied with an embedding" if tied else "embedding"
    if parameter.ndim < 2:
        return "adamw", Whole(), f"{parameter.ndim}-D ({kind})"
    if isinstance(module, CONVOLUTIONS):
        if module.groups > 1 and module.groups == module.in_channels:
            return "adamw", Whole(), "depthwise convolution"
        return "lmo", Flatten(), "convolution, flattened"
    if min(shape[-2:]) == 1:
        return "adamw", Whole(), "a matrix with one row or column"
    rows = _rows(name, shape, split)
    if rows is not None:
        return "lmo", Split(rows), "fused weights, split"
    if any(word in HEADS for word in name.lower().split(".")):
        return "adamw", Whole(), "output layer by name"
    if id(parameter) == last:
        return "adamw", Whole(), "last linear layer: the output"
    if parameter.ndim == 2:
        return "lmo", Whole(), f"hidden matrix ({kind})"
    if parameter.ndim == 3:
        return "lmo", Whole(), "stack of matrices"
    return "adamw", Whole(), f"{parameter.ndim}-D parameter of {kind}: no known matrix in it"


def _rows(
    name: str, shape: tuple[int, ...], split: Mapping[str, int | tuple[int, ...]] | None
) -> int | tuple[int, ...] | None:
    if split is not None:
        return next((rows for glob, rows in split.items() if fnmatch.fnmatchcase(name, glob)), None)
    words = name.lower().replace("_weight", "").split(".")
    fused = any(word in FUSED for word in words) and len(shape) == 2 and shape[0] == 3 * shape[1]
    return 3 if fused else None
