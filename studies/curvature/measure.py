"""Gradient and curvature along the singular directions of an oracle's input, at points of runs of the lab.

`python studies/curvature/measure.py --out studies/curvature/measured.json [--runs cnn-50]` trains each run of `RUNS`
and stops at its points. There, for each hidden matrix and for two inputs M = U S V^T (the momentum that the oracle is
given next, and the gradient of many examples), it measures

    slope      <G, u_i v_i^T>, G the gradient of as many other examples
    curvature  <u_i v_i^T, H u_i v_i^T>, H the Hessian of the loss, by a Hessian-vector product

for some i, and both along U S^p V^T for each p of `POWERS`, for one matrix and for all of them together.
"""

from __future__ import annotations

import json
import time
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from inexact_muon.optim import LMOOptimizer, Observer
from inexact_muon.optim.lengths import original
from inexact_muon.views import View
from inexact_muon_lab.problems import Task
from inexact_muon_lab.spec.spec import Cnn, MuonSpec, NanoGPT, RunSpec, ScheduleSpec
from inexact_muon_lab.train.trainer import Training
from inexact_muon_lab.train.world import join

POWERS = (-0.6, -0.4, -0.2, 0.0, 0.2)
DIRECTIONS = 12
"""Singular directions of a matrix whose curvature is measured."""
THREE_POLES = "zolotarev(poles=3)"


@dataclass(frozen=True)
class Run:
    """A run, and what is measured in it.

    Attributes:
        points: numbers of steps after which it is measured.
        examples: of a gradient.
        few: examples of the curvature along single directions.
        many: examples of the curvature along steps of all matrices.
        unused: a step whose batch, and those after it, are not trained on (or start an epoch, for digits).
    """

    model: str
    spec: RunSpec
    points: tuple[int, ...]
    examples: int
    few: int
    many: int
    unused: int


def gpt(batch: int, seed: int) -> Run:
    """The byte GPT of 2 layers of the studies of maps, without weight decay."""
    spec = RunSpec(
        problem=NanoGPT(size="tiny", context=64),
        optimizer=MuonSpec(lr=0.06, momentum=0.7, weight_decay=0.0, polar=THREE_POLES),
        schedule=ScheduleSpec(cooldown=0.4),
        steps=250,
        batch=batch,
        seed=seed,
    )
    return Run("gpt", spec, (12, 50, 150, 240) if batch == 16 else (50, 240), 1024, 32, 128, 10**6)


def cnn(batch: int, seed: int) -> Run:
    """The conv net on digits of digits.toml."""
    spec = RunSpec(
        problem=Cnn(),
        optimizer=MuonSpec(lr=0.05, momentum=0.9, weight_decay=0.0, polar=THREE_POLES),
        schedule=ScheduleSpec(cooldown=0.4),
        steps=40,
        batch=batch,
        seed=seed,
    )
    return Run("cnn", spec, (4, 16, 36), 718, 359, 718, 1437 * 10)


RUNS = {
    f"{made.__name__}-{batch}": [made(batch, seed) for seed in (500, 501, 502)]
    for made, batches in ((gpt, (16, 64)), (cnn, (50, 200)))
    for batch in batches
}
"""Model and batch -> its runs."""


class Hidden(NamedTuple):
    """A parameter and how it is cut into matrices."""

    name: str
    view: View
    parameter: Tensor

    def embedded(self, index: int, matrix: Tensor) -> Tensor:
        """The parameter that is zero but for one of its matrices."""
        parts = [torch.zeros(shape) for shape in self.view.shapes(self.parameter.shape)]
        parts[index] = matrix.float().reshape(parts[index].shape)
        return self.view.join(parts, self.parameter.shape)


class Inputs(Observer):
    """Keeps what the oracles are given, by parameter."""

    def __init__(self) -> None:
        self.matrices: dict[str, list[Tensor]] = {}

    def wants(self, optimizer: Any, entries: Sequence[tuple[dict[str, Any], Tensor]]) -> set[int]:
        return {id(p) for group, p in entries if group["algorithm"] == "lmo"}

    def seen(self, name: str, answers: Sequence[Any]) -> None:
        self.matrices[name] = [m.detach().double() for _, m, _ in answers]


class Basis(NamedTuple):
    """The singular value decomposition of an input, without directions at the level of rounding."""

    u: Tensor
    s: Tensor
    v: Tensor

    def power(self, p: float) -> Tensor:
        """U (S/s_1)^p V^T, in the length that the optimizer would give it."""
        return original(len(self.u), len(self.v)) * (self.u * (self.s / self.s[0]) ** p) @ self.v.mT

    def direction(self, i: int) -> Tensor:
        """u_i v_i^T."""
        return torch.outer(self.u[:, i], self.v[:, i])


def basis(matrix: Tensor) -> Basis:
    """Of a matrix in double precision whose entries were rounded to float32."""
    u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
    kept = s > max(matrix.shape) * torch.finfo(torch.float32).eps * s[0]
    return Basis(u[:, kept], s[kept], vh[kept].mT)


def strata(count: int) -> list[range]:
    """Indices 0 .. count-1 in at most `DIRECTIONS` ranges, one index each at the top and longer ones below."""
    ends = np.unique(np.concatenate([np.arange(4), np.geomspace(4, count, DIRECTIONS - 3).round()]).astype(int))
    ends = ends[ends <= count]
    return [range(a, b) for a, b in pairwise(ends.tolist())]


def examples(task: Task, first: int, count: int) -> tuple[Tensor, ...]:
    """So many examples, of the batches from step `first` on."""
    parts, total = [], 0
    while total < count:
        parts.append(task.batch(first + len(parts)))
        total += len(parts[-1][0])
    return tuple(torch.cat(tensors)[:count] for tensors in zip(*parts, strict=True))


class Point:
    """A model at a point of a run: its gradients and its curvature."""

    def __init__(self, run: Run, task: Task, model: nn.Module, hidden: list[Hidden]) -> None:
        self.run, self.task, self.model, self.hidden = run, task, model, hidden
        self.parameters = [one.parameter for one in hidden]
        size = run.examples
        every = examples(task, run.unused, 2 * size + run.many)
        self.loss, self.given = self.gradient(tuple(x[:size] for x in every))
        _, self.other = self.gradient(tuple(x[size : 2 * size] for x in every))
        self.many = tuple(x[2 * size :] for x in every)
        self.few = self.differentiable(tuple(x[: run.few] for x in self.many))

    def gradient(self, batch: tuple[Tensor, ...]) -> tuple[float, list[Tensor]]:
        """Mean loss and its gradient, in parts of 128 examples."""
        total, sums = 0.0, [torch.zeros_like(p, dtype=torch.float64) for p in self.parameters]
        for part in zip(*(x.split(128) for x in batch), strict=True):
            loss = self.task.loss(self.model, part)
            share = len(part[0]) / len(batch[0])
            total += share * float(loss.detach())
            for into, g in zip(sums, torch.autograd.grad(loss, self.parameters), strict=True):
                into += share * g
        return total, sums

    def differentiable(self, batch: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The gradient with its graph."""
        return torch.autograd.grad(self.task.loss(self.model, batch), self.parameters, create_graph=True)

    def measured(self, inputs: dict[str, list[Tensor]]) -> dict[str, Any]:
        """Along the directions of these matrices."""
        steps: list[list[Tensor]] = [[torch.zeros_like(p) for p in self.parameters] for _ in POWERS]
        matrices = []
        for k, one in enumerate(self.hidden):
            slopes = one.view.cut(self.other[k])
            for index, matrix in enumerate(inputs[one.name]):
                found = basis(matrix)
                along = [found.power(p) for p in POWERS]
                for step, direction in zip(steps, along, strict=True):
                    step[k] += one.embedded(index, direction)
                slope = slopes[index].reshape(matrix.shape)
                chosen = strata(len(found.s))
                at = [part[len(part) // 2] for part in chosen]
                matrices.append(
                    {
                        "name": f"{one.name}[{index}]" if len(slopes) > 1 else one.name,
                        "kind": kind(one.name, index),
                        "length": rounded([original(*matrix.shape)])[0],
                        "s": rounded(found.s[at] / found.s[0]),
                        "stand_for": [len(part) for part in chosen],
                        "slope": rounded([float((slope * found.direction(i)).sum()) for i in at]),
                        "curvature": rounded([self.curvature(k, index, found.direction(i)) for i in at]),
                        "power_slope": rounded([float((slope * d).sum()) for d in along]),
                        "power_curvature": rounded([self.curvature(k, index, d) for d in along]),
                    }
                )
        together = self.together(steps)
        slopes_together = [sum(float((g * d).sum()) for g, d in zip(self.other, step, strict=True)) for step in steps]
        return {"power_slope": rounded(slopes_together), "power_curvature": rounded(together), "matrices": matrices}

    def curvature(self, k: int, index: int, direction: Tensor) -> float:
        """<d, H d> for a direction in one matrix."""
        d = self.hidden[k].embedded(index, direction)
        (product,) = torch.autograd.grad(self.few[k], self.parameters[k], d, retain_graph=True)
        return float((product.double() * d).sum())

    def together(self, steps: list[list[Tensor]]) -> list[float]:
        """<D, H D> for steps of all matrices."""
        total = [0.0] * len(steps)
        for part in zip(*(x.split(self.run.few) for x in self.many), strict=True):
            share = len(part[0]) / len(self.many[0])
            gradient = self.differentiable(part)
            for i, step in enumerate(steps):
                product = torch.autograd.grad(gradient, self.parameters, step, retain_graph=True)
                total[i] += share * sum(float((h.double() * d).sum()) for h, d in zip(product, step, strict=True))
        return total


def kind(name: str, index: int) -> str:
    """What the layer does: "q", "up", "first"."""
    layer = name.removesuffix(".weight").rpartition(".")[2]
    return "qkv"[index] if layer == "qkv" else layer


def rounded(values: Any) -> list[float]:
    """Four digits of each."""
    return [float(f"{float(value):.4g}") for value in values]


def points(run: Run) -> Iterator[dict[str, Any]]:
    """Train, and measure at each point."""
    with TemporaryDirectory() as folder, join("cpu", run.spec.batch, 1) as world:
        training = Training(run.spec, Path(folder), world)
        optimizer = training.optimizer
        assert isinstance(optimizer, LMOOptimizer)
        inputs = Inputs()
        while training.step <= max(run.points):
            if training.step not in run.points:
                training.advance(lambda: False)
                continue
            step, model = training.step, deepcopy(training.model)
            optimizer.observers.append(inputs)
            training.advance(lambda: False)
            optimizer.observers.remove(inputs)
            here = dict(model.named_parameters())
            lmo = [(n, g) for n, _, g in optimizer.named() if g["algorithm"] == "lmo"]
            hidden = [Hidden(n, optimizer.view(g), here[n]) for n, g in lmo]
            point = Point(run, training.task, model, hidden)
            gradient = {
                one.name: [
                    m.reshape(given.shape) for m, given in zip(one.view.cut(g), inputs.matrices[one.name], strict=True)
                ]
                for one, g in zip(hidden, point.given, strict=True)
            }
            for label, matrices in (("momentum", inputs.matrices), ("gradient", gradient)):
                start = {"model": run.model, "batch": run.spec.batch, "seed": run.spec.seed, "step": step}
                yield start | {"input": label, "loss": rounded([point.loss])[0]} | point.measured(matrices)
        training.close()


def main() -> None:
    """The command."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--runs", nargs="+", choices=RUNS, default=list(RUNS), help="the others stay as they are")
    given = parser.parse_args()
    torch.set_num_threads(1)
    old = json.loads(given.out.read_text()) if given.out.exists() else {"seconds": {}, "points": []}
    rows = [row for row in old["points"] if f"{row['model']}-{row['batch']}" not in given.runs]
    seconds = old["seconds"] | dict.fromkeys(given.runs, 0.0)
    with sdpa_kernel(SDPBackend.MATH):  # the others have no second derivative
        for name, run in ((group, run) for group in given.runs for run in RUNS[group]):
            begun = time.process_time()
            rows += list(points(run))
            seconds[name] = round(seconds[name] + time.process_time() - begun, 1)
            print(name, run.spec.seed, f"{time.process_time() - begun:.0f} s", flush=True)
            content = {"powers": POWERS, "seconds": seconds, "points": rows}
            given.out.write_text(json.dumps(content, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
