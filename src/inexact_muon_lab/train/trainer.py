"""Training of one spec in one folder. Interrupted and resumed at any step, it gives bitwise the same results.

All randomness is a function of seed and step (`world.reseed`, `data.order`), so a checkpoint contains only the model,
the optimizer, the step and the losses not yet recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing, nullcontext
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from inexact_muon.optim import LMOOptimizer
from inexact_muon_lab import problems
from inexact_muon_lab.errors import warn
from inexact_muon_lab.spec.spec import RunSpec
from inexact_muon_lab.store.curves import Curves, Mark, holds
from inexact_muon_lab.store.outcome import CHECKPOINT, CURVES, End, Outcome
from inexact_muon_lab.train import checkpoint, optimizers
from inexact_muon_lab.train.environment import INPUTS, OtherProcesses, environment
from inexact_muon_lab.train.observers import Clock, StepObserver, oracle_work, skipped
from inexact_muon_lab.train.world import World, join, reseed

Report = Callable[[int, float], None]
"""Called after each step with the step and its loss."""


def train(
    spec: RunSpec,
    folder: Path,
    report: Report = lambda step, loss: None,
    stopping: Callable[[], bool] = lambda: False,
    keep: bool = False,
) -> Outcome | None:
    """Train to the end and return the outcome; None, with a checkpoint, if interrupted by `stopping`.

    With `keep` a checkpoint is written at the end too, if the run finished.
    """
    with join(spec.device, spec.batch, spec.accumulate) as world, closing(Training(spec, folder, world)) as training:
        outcome = training.run(report, stopping)
        if keep and outcome is not None and outcome.state == "finished":
            training.save()
        return outcome


class Training:
    """A run in progress."""

    def __init__(self, spec: RunSpec, folder: Path, world: World) -> None:
        self.spec, self.folder, self.world = spec, folder, world
        self.environment = environment(spec, world)  # of the start: files may change while it trains
        reseed(spec.seed, 0, 0)
        self.task = problems.build(spec)
        self.model = self.task.model.to(world.device)
        self.optimizer = optimizers.build(self.model, spec.optimizer)
        self.rates = [float(group["lr"]) for group in self.optimizer.param_groups]
        self.step = 0
        self.losses: list[float] = []
        self.work = 0
        self.result: dict[str, float | None] = {}
        self.clock = Clock(world.device)
        self.others = OtherProcesses() if world.size == 1 else None  # the other ranks would count as others
        self.observer = StepObserver(spec.telemetry.exact, self.clock)
        start = self._restore()
        if isinstance(self.optimizer, LMOOptimizer):
            self.optimizer.observers.append(self.observer)
        self.wrapped: nn.Module = self.model if world.size == 1 else DDP(self.model)
        self.curves = Curves(folder / CURVES, start) if world.rank == 0 else None

    def run(self, report: Report, stopping: Callable[[], bool]) -> Outcome | None:
        """Step until the end, a loss that is not finite, or `stopping`."""
        spec = self.spec
        while self.step < spec.steps:
            self.clock.start()
            loss, stop = self.advance(stopping)
            if not isfinite(loss):
                self.result |= {"train_loss": None}
                self.record("train", {"loss": loss})
                return self.outcome("diverged")
            last = self.step == spec.steps
            self.losses.append(loss)
            if last or self.step % spec.record_every == 0:
                self.record_losses()
            if self.observer.watch:
                if errors := self.observer.summary():
                    self.result["lmo_error"] = errors["sum"]
                    self.record("lmo", errors)
                self.clock.lap("telemetry")
            if (last or (spec.evaluate_every and self.step % spec.evaluate_every == 0)) and not self.evaluate():
                return self.outcome("diverged")
            report(self.step, loss)
            if stop and not last:
                self.save()
                return None
            if not last and spec.checkpoint_every and self.step % spec.checkpoint_every == 0:
                self.save()
        return self.outcome("finished")

    def advance(self, stopping: Callable[[], bool]) -> tuple[float, bool]:
        """One optimizer step; returns the mean loss over the processes, and whether any of them should stop.

        Nothing is changed if the loss is not finite.
        """
        spec, world, clock = self.spec, self.world, self.clock
        reseed(spec.seed, self.step + 1, world.rank)
        batch = self.task.batch(self.step)
        self.optimizer.zero_grad(set_to_none=True)
        clock.lap("data")
        total = 0.0
        for part in range(spec.accumulate):
            share = world.share(batch, spec.accumulate, part)
            with self._no_sync(part), self._autocast():
                loss = self.task.loss(self.wrapped, share)
                clock.lap("forward")
                (loss / spec.accumulate).backward()  # type: ignore[no-untyped-call]
            clock.lap("backward")
            total += float(loss.detach()) / spec.accumulate
        mean, stop = world.mean([total, float(stopping())])
        self.step += 1
        if isfinite(mean):
            for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
                group["lr"] = rate * spec.schedule.factor(self.step - 1, spec.steps)
            every, last = spec.telemetry.every, self.step == spec.steps
            self.observer.watch = every > 0 and (last or self.step == 1 or self.step % every == 0)
            self.optimizer.step()
            self.work += oracle_work(self.optimizer)
            clock.lap("optimizer")
        return mean, stop > 0

    def evaluate(self) -> bool:
        """Record the mean metrics of the validation batches; False if one is not finite."""
        if self.task.validation is None:
            self.result["loss"] = self.result.get("train_loss")
            return True
        reseed(self.spec.seed, self.step, self.world.rank)
        self.model.eval()
        sums: dict[str, float] = {}
        with torch.no_grad(), self._autocast():
            for index in range(max(self.spec.validation, self.world.size)):  # every process learns the names
                batch = self.task.validation(index % self.spec.validation)
                if index % self.world.size != self.world.rank:
                    continue
                batch = tuple(tensor.to(self.world.device) for tensor in batch)
                for name, value in self.task.measure(self.model, batch).items():
                    sums[name] = sums.get(name, 0.0) + (float(value) if index < self.spec.validation else 0.0)
        self.model.train()
        means = [m * self.world.size / self.spec.validation for m in self.world.mean(list(sums.values()))]
        measured = dict(zip(sums, means, strict=True))
        self.result |= {name: value if isfinite(value) else None for name, value in measured.items()}
        self.record("validation", measured)
        self.clock.lap("evaluation")
        return all(map(isfinite, means))

    def record_losses(self) -> None:
        """Record the mean training loss since the last record, and the wall times so far."""
        mean = sum(self.losses) / len(self.losses)
        self.result["train_loss"] = mean
        self.losses = []
        self.record("train", {"loss": mean, "lr": float(self.optimizer.param_groups[0]["lr"])})
        self.record("time", self.clock.seconds)
        self.clock.lap("storage")

    def record(self, kind: str, values: Mapping[str, Any]) -> None:
        """Append a record to the curves, in the first process."""
        if self.curves is not None:
            self.curves.append(kind, self.step, values)

    def save(self) -> None:
        """Replace the checkpoint, after flushing the curves."""
        self.clock.start()
        if self.curves is not None:
            self.curves.sync()
            content = {
                "run": self.spec.id,
                "environment": self.environment,
                "step": self.step,
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "losses": self.losses,
                "result": self.result,
                "work": self.work,
                "seconds": self.clock.seconds,
                "curves": [self.curves.mark.bytes, self.curves.mark.sha256],
            }
            checkpoint.save(self.folder / CHECKPOINT, content)
        self.clock.lap("storage")

    def outcome(self, state: End) -> Outcome:
        return Outcome(
            state=state,
            step=self.step,
            run=self.spec.id,
            result=self.result | ({"oracle_flops": float(self.work)} if self.work else {}),
            skipped=skipped(self.optimizer),
            seconds={part: round(value, 6) for part, value in self.clock.seconds.items()},
            others=self.others.share() if self.others else None,
            environment=self.environment,
        )

    def close(self) -> None:
        if self.curves is not None:
            self.curves.sync()
            self.curves.close()

    def _restore(self) -> Mark:
        """Continue from the checkpoint, if it and its curves are intact; returns the mark of the curves."""
        saved = checkpoint.load(self.folder / CHECKPOINT, self.world.device)
        if saved is None:
            return Mark()
        if why := self._foreign(saved):
            warn(f"{self.folder / CHECKPOINT} {why}; the run starts again from the beginning")
            return Mark()
        start = Mark(*saved["curves"])
        if not holds(self.folder / CURVES, start, whole=False):
            warn(f"{self.folder / CURVES} is damaged or cut off; the run starts again from the beginning")
            return Mark()
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.step, self.losses, self.result = saved["step"], saved["losses"], saved["result"]
        self.work = saved["work"]
        self.clock.seconds |= saved["seconds"]  # the observers hold this clock
        return start

    def _foreign(self, saved: Mapping[str, Any]) -> str:
        """Why a checkpoint does not belong to this run on these data; checkpoints of earlier versions do not say."""
        if saved.get("run", self.spec.id) != self.spec.id:
            return f"is that of run {saved['run']}"
        inputs = {n: value for n, value in saved.get("environment", {}).items() if n in INPUTS}
        names = [n for n, value in inputs.items() if self.environment.get(n) != value]
        return f"was written with other {' and '.join(names)}" if names else ""

    def _no_sync(self, part: int) -> Any:
        """Synchronise gradients once per step, with the last micro-batch."""
        last = part == self.spec.accumulate - 1
        return self.wrapped.no_sync() if isinstance(self.wrapped, DDP) and not last else nullcontext()

    def _autocast(self) -> Any:
        half = self.spec.precision == "bfloat16"
        return torch.autocast(self.world.device.type, torch.bfloat16) if half else nullcontext()
