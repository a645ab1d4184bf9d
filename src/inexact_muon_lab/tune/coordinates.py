"""Coordinate check: does a learning rate carry over to another width?

A model is trained for a few steps at several widths on one batch. With h_t the output of a layer after t steps, the
change rms(h_t - h_0) should not depend on the width (muP, arXiv 2203.03466): its exponent is the slope of
log rms(h_t - h_0) over log width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from math import isfinite, log
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from inexact_muon_lab.extras import require

FLAT = 0.25
"""Exponents up to which a change counts as independent of the width; a change that is not tuned has 1/2 or more."""


@dataclass(frozen=True)
class Widths:
    """Changes of layers' outputs at several widths: layer -> for each width, rms(h_t - h_0) after each step."""

    sizes: tuple[int, ...]
    changes: dict[str, tuple[tuple[float, ...], ...]]

    @property
    def slopes(self) -> dict[str, float]:
        """Layer -> exponent of the width after the last step; nan if a change is zero or not finite."""
        return {name: _slope(self.sizes, [steps[-1] for steps in rows]) for name, rows in self.changes.items()}

    @property
    def carries_over(self) -> bool:
        """Whether no layer's change depends on the width."""
        return all(abs(slope) <= FLAT for slope in self.slopes.values())

    @property
    def verdict(self) -> str:
        """One sentence."""
        known = {name: slope for name, slope in self.slopes.items() if isfinite(slope)}
        if len(known) < len(self.slopes):
            lost = ", ".join(name for name in self.slopes if name not in known)
            return f"not known: the output of {lost} did not change, or its change is not finite."
        worst = max(known, key=lambda name: abs(known[name]))
        span = f"from width {min(self.sizes)} to {max(self.sizes)}"
        if self.carries_over:
            return f"the learning rate carries over {span}: layers change at most like width^{known[worst]:+.2f}."
        count = sum(abs(slope) > FLAT for slope in known.values())
        others = f" ({count} of {len(known)} layers depend on it)" if count > 1 else ""
        return (
            f"the learning rate does not carry over {span}: the change of {worst} goes like width^{known[worst]:+.2f}"
            f"{others}; correct its learning rate or its initial size by the opposite power."
        )

    def plot(self) -> Any:
        """A chart for a notebook (extra `lab`): the change of each layer over the width."""
        alt = require("altair", "lab")
        values = [
            {"layer": name, "width": width, "change": steps[-1]}
            for name, rows in self.changes.items()
            for width, steps in zip(self.sizes, rows, strict=True)
        ]
        scale = alt.Scale(type="log")
        return (
            alt.Chart(alt.Data(values=values), title=alt.TitleParams(self.verdict, fontSize=12, anchor="start"))
            .mark_line(point=True)
            .encode(
                x=alt.X("width:Q", scale=scale),
                y=alt.Y("change:Q", title="rms change of the output", scale=scale),
                color="layer:N",
            )
            .properties(width=420, height=260)
        )


def widths(
    make_model: Callable[[int], nn.Module],
    sizes: Sequence[int],
    loss: Callable[[nn.Module], Tensor],
    optimizer: Callable[[nn.Module], Any],
    *,
    steps: int = 4,
    seeds: Sequence[int] = (0, 1, 2),
) -> Widths:
    """Train at several widths for a few steps, and compare the changes of the layers' outputs.

    Args:
        make_model: width -> model, with the same names of layers at every width.
        sizes: at least two widths, such as (64, 128, 256).
        loss: of a model on a fixed batch.
        optimizer: of a model, such as lambda model: Muon.for_model(model, lr=0.02).
        steps: number of steps.
        seeds: of the models; changes are averaged over them. torch's random state is left as it was.
    """
    if not isinstance(sizes, Sequence):
        raise TypeError(f"widths needs several sizes, such as (64, 128, 256), got {sizes!r}")
    if len(set(sizes)) < 2 or min(sizes) < 1 or steps < 1 or not seeds:
        raise ValueError(f"widths needs two widths, a step and a seed, got {tuple(sizes)}, {steps} and {tuple(seeds)}")

    def run(width: int, seed: int) -> dict[str, list[float]]:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return _changes(make_model(width), loss, optimizer, steps)

    tables = [[run(width, seed) for seed in seeds] for width in sizes]
    names = [name for name in tables[0][0] if all(name in changes for runs in tables for changes in runs)]
    if not names:
        raise ValueError("widths: the models have no layers of the same name, or these give no tensors")
    rows = {
        name: tuple(tuple(np.mean([changes[name] for changes in runs], axis=0).tolist()) for runs in tables)
        for name in names
    }
    return Widths(tuple(sizes), rows)


def _changes(
    model: nn.Module, loss: Callable[[nn.Module], Tensor], optimizer: Callable[[nn.Module], Any], steps: int
) -> dict[str, list[float]]:
    """Layer -> rms(h_t - h_0) after each step."""
    update, changes = optimizer(model), dict[str, list[float]]()
    first: dict[str, Tensor] = {}
    for step in range(steps + 1):
        with _outputs(model) as outputs:
            value = loss(model)
        first = first or outputs
        if step:
            for name in first.keys() & outputs.keys():
                change = (outputs[name] - first[name]).double().square().mean().sqrt()
                changes.setdefault(name, []).append(float(change))
        if step < steps:
            update.zero_grad()
            value.backward()  # type: ignore[no-untyped-call]
            update.step()
    return {name: changes[name] for name in first if name in changes}


@contextmanager
def _outputs(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Outputs of the layers with weights, by name, while the model runs; of several calls the last."""
    outputs: dict[str, Tensor] = {}

    def hook(name: str, _: nn.Module, args: Any, result: Any) -> None:
        tensor = result[0] if isinstance(result, tuple) else result
        if isinstance(tensor, Tensor):
            outputs[name] = tensor.detach().clone()

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            if any(p.ndim > 1 for p in module.parameters(recurse=False)):
                hooks.enter_context(module.register_forward_hook(partial(hook, name)))
        yield outputs


def _slope(sizes: Sequence[int], changes: Sequence[float]) -> float:
    if not all(isfinite(change) and change > 0.0 for change in changes):
        return float("nan")
    return float(np.polyfit([log(size) for size in sizes], [log(change) for change in changes], 1)[0])
