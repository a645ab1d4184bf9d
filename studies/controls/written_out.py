"""Arms that are no oracle of the library, written out: lengths exchanged both ways (E), whitened inputs (F).

`python studies/controls/written_out.py [FILE]` trains what `written-out.json` lacks: lr of each arm on two seeds, then
each at its best one on eight others; 250 steps of the GPT of `tilts-fresh.toml`, with its decay, momentum and data. The
arm `polar factor` is the library's own update written again; a test compares it with a run of the lab.

For a layer y = W x and C, the running mean of x x^T, `whitened` is polar(Z C^(-1/4)) C^(-1/4) with the length of
polar(Z).
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import sqrt
from pathlib import Path
from statistics import fmean

import msgspec
import torch
from torch import Tensor, nn

from inexact_muon import polar
from inexact_muon_lab import problems
from inexact_muon_lab.spec import study
from inexact_muon_lab.spec.spec import RunSpec
from inexact_muon_lab.statistics import interval, paired
from inexact_muon_lab.train import optimizers
from inexact_muon_lab.train.world import reseed

FOLDER = Path(__file__).parent
FILE = FOLDER / "written-out.json"
TUNED_ON, FRESH = (300, 301), (350, 351, 352, 353, 354, 355, 356, 357)
EXACT, TILT = polar.parse("zolotarev(poles=3)"), polar.parse("zolotarev(poles=3, lower=0.002, power=-0.2)")
MEMORY, DAMPING = 0.95, 1e-3
"""Weight of the old C; what is added to it, as a share of its mean eigenvalue."""

Direction = Callable[[Tensor, Tensor], Tensor]
"""The update of a matrix from the LMO's input and C of the layer's input."""


def with_length(z: Tensor, other: Tensor) -> Tensor:
    """z with the Frobenius norm of another."""
    return z * (other.norm() / z.norm())


def whitened(m: Tensor, c: Tensor) -> Tensor:
    """polar(m C^(-1/4)) C^(-1/4) with the length of polar(m)."""
    values, vectors = torch.linalg.eigh(c + DAMPING * c.trace() / len(c) * torch.eye(len(c)))
    root = vectors * values.clamp_min(1e-12) ** -0.25 @ vectors.T
    return with_length(EXACT(m @ root) @ root, EXACT(m))


ARMS: dict[str, tuple[Direction, tuple[float, ...]]] = {
    "polar factor": (lambda m, _: EXACT(m), (0.0375, 0.06, 0.096)),
    "s^-0.2": (lambda m, _: TILT(m), (0.0234, 0.0375, 0.06)),
    "polar factor, length of s^-0.2": (lambda m, _: with_length(EXACT(m), TILT(m)), (0.0146, 0.0234, 0.0375, 0.06)),
    "s^-0.2, length of the polar factor": (lambda m, _: with_length(TILT(m), EXACT(m)), (0.0375, 0.06, 0.096)),
    "whitened": (whitened, (0.0375, 0.06, 0.096, 0.154)),
}
"""Name -> (direction, step sizes tried)."""


@dataclass
class Layer:
    """A matrix, the number of matrices its rows consist of, its momentum and C of its input."""

    weight: Tensor
    parts: int
    momentum: Tensor
    c: Tensor
    squares: list[Tensor] = field(default_factory=list)

    def update(self, spec: RunSpec, direction: Direction, lr: float, height: float) -> None:
        """W <- (1 - decay height) W - lr height sqrt(max(1, rows/columns)) direction, for each part."""
        mu, g = spec.optimizer.momentum, self.weight.grad
        assert g is not None
        self.c.lerp_(torch.stack(self.squares).mean(0), 1.0 - MEMORY if self.c.any() else 1.0)
        self.squares.clear()
        self.momentum.lerp_(g, 1.0 - mu)
        steps = [direction(m, self.c) for m in self.momentum.lerp(g, 1.0 - mu).chunk(self.parts)]
        scale = sqrt(max(1.0, steps[0].shape[0] / steps[0].shape[1]))
        self.weight.data.mul_(1.0 - spec.optimizer.decay * height)
        self.weight.data.sub_(torch.cat(steps), alpha=lr * height * scale)


def layers(model: nn.Module) -> list[Layer]:
    """The linear layers of the blocks, whose inputs are watched from now on."""
    made = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and name.startswith("blocks"):
            w, n = module.weight, module.in_features
            layer = Layer(w, 3 if name.endswith("qkv") else 1, torch.zeros_like(w), torch.zeros(n, n))
            module.register_forward_pre_hook(lambda _, inputs, layer=layer: watch(layer, inputs[0]))
            made.append(layer)
    return made


def watch(layer: Layer, x: Tensor) -> None:
    """Note x x^T of a batch in training."""
    if torch.is_grad_enabled():
        rows = x.detach().flatten(0, -2)
        layer.squares.append(rows.T @ rows / len(rows))


def loss(arm: str, lr: float, seed: int, steps: int | None = None) -> float:
    """The validation loss at the end of a run."""
    spec = next(run for run in study.load(FOLDER / "tilts-fresh.toml").runs if run.optimizer.decay == 0.0019)
    reseed(seed, 0, 0)
    task = problems.build(spec := replaced(spec, seed, steps))
    rest = optimizers.build(task.model, spec.optimizer)
    watched, rates = layers(task.model), [float(group["lr"]) for group in rest.param_groups]
    for step in range(spec.steps):
        reseed(seed, step + 1, 0)
        rest.zero_grad()
        task.loss(task.model, task.batch(step)).backward()
        height = spec.schedule.factor(step, spec.steps)
        for layer in watched:
            layer.update(spec, ARMS[arm][0], lr, height)
            layer.weight.grad = None  # the library's optimizer steps the others
        for group, rate in zip(rest.param_groups, rates, strict=True):
            group["lr"] = rate * height
        rest.step()
    reseed(seed, spec.steps, 0)
    task.model.eval()
    with torch.no_grad():
        return fmean(float(task.measure(task.model, task.validation(i))["loss"]) for i in range(spec.validation))


def replaced(spec: RunSpec, seed: int, steps: int | None) -> RunSpec:
    """The spec with another seed, and of fewer steps."""
    return msgspec.structs.replace(spec, seed=seed, steps=steps or spec.steps)


def table(file: Path) -> str:
    """Each arm at the lr that was best for it on the tuning seeds, minus the polar factor on the others."""
    losses: dict[str, dict[float, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for key, value in json.loads(file.read_text()).items():
        arm, lr, seed = key.split(" | ")
        losses[arm][float(lr)][int(seed)] = value
    lines = ["| arm | lr | at an end of the grid | minus the polar factor | seeds |", "|---|---:|---|---:|---:|"]
    ends: dict[str, dict[int, float]] = {}
    for arm, cells in losses.items():
        lr = best(cells)
        ends[arm] = {seed: value for seed, value in cells[lr].items() if seed in FRESH}
        edge = "yes" if lr in (min(cells), max(cells)) else "no"
        gain = interval(paired(ends[arm], ends["polar factor"]))
        said = "" if arm == "polar factor" else f"{gain.mean:+.4f} ({gain.low:+.4f} to {gain.high:+.4f})"
        lines.append(f"| {arm} | {lr:g} | {edge} | {said} | {len(ends[arm])} |")
    return "\n".join(lines) + "\n"


def best(cells: Mapping[float, Mapping[int, float]]) -> float:
    """The lr with the lowest mean loss on the seeds for tuning."""
    means = {lr: fmean(by_seed[seed] for seed in TUNED_ON) for lr, by_seed in cells.items() if TUNED_ON[-1] in by_seed}
    return min(means, key=lambda lr: means[lr])


def main(file: Path) -> None:
    """Train what is missing in a file, tuning first; every loss is written when it is there."""
    done: dict[str, float] = json.loads(file.read_text()) if file.exists() else {}

    def need(arm: str, lr: float, seed: int) -> float:
        key = f"{arm} | {lr} | {seed}"
        if key not in done:
            done[key] = loss(arm, lr, seed)
            file.write_text(json.dumps(done, indent=0) + "\n")
            print(f"{key}: {done[key]:.4f}", flush=True)
        return done[key]

    for arm, (_, rates) in ARMS.items():
        chosen = best({lr: {seed: need(arm, lr, seed) for seed in TUNED_ON} for lr in rates})
        for seed in FRESH:
            need(arm, chosen, seed)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FILE)
