"""One run of a store as a plain frozen record."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from inexact_muon.schedules import oracles
from inexact_muon.schedules.oracles import OracleText
from inexact_muon_lab.spec.optimizers import SGD, AdamW, MuonSpec, TorchMuonSpec
from inexact_muon_lab.spec.spec import RunSpec, tag
from inexact_muon_lab.store import store
from inexact_muon_lab.store.curves import Record, thin
from inexact_muon_lab.store.store import Outcome

STEPPED = ("data", "forward", "backward", "oracle", "optimizer")
"""Timed parts that belong to a training step."""

LEAST_PARTS = 5
"""Fewest parts of a run of whose times a median is taken."""

Arm = tuple[OracleText | None, float, float | None]
"""(oracle, step size, momentum)"""


def _stepped(seconds: Mapping[str, Any]) -> float:
    return sum(float(seconds.get(part) or 0.0) for part in STEPPED)


@dataclass(frozen=True)
class RunRecord:
    """One run: spec and results."""

    folder: Path
    study: str
    id: str
    spec: RunSpec
    state: str
    step: int
    result: dict[str, float | None]
    seconds: dict[str, float]
    outcome: Outcome | None = None

    @cached_property
    def curves(self) -> list[Record]:
        """The records of the run, read on first access."""
        return store.intact_curves(self.folder, self.id, self.outcome)

    def records(self, kind: str) -> list[Record]:
        """The records of one kind."""
        return [record for record in self.curves if record["kind"] == kind]

    @cached_property
    def oracle(self) -> OracleText | None:
        """The oracle; None for an optimizer without one."""
        return oracles.parts(self.spec.polar) if self.spec.polar else None

    @property
    def arm(self) -> Arm:
        """What distinguishes comparable runs of one seed: oracle, step size, momentum."""
        return self.oracle, self.lr, self.momentum

    @property
    def optimizer(self) -> str:
        """muon, scion, ..."""
        return tag(type(self.spec.optimizer))

    @property
    def problem(self) -> str:
        """nanogpt, cnn or custom."""
        return tag(type(self.spec.problem))

    @property
    def lr(self) -> float:
        """gamma."""
        return self.spec.optimizer.lr

    @property
    def momentum(self) -> float | None:
        """beta = 1 - alpha."""
        optimizer = self.spec.optimizer
        return None if isinstance(optimizer, AdamW) else optimizer.momentum

    @property
    def tied(self) -> bool:
        """Weight decay is tied to lr: runs at different lr differ in decay, too."""
        optimizer = self.spec.optimizer
        if isinstance(optimizer, MuonSpec):
            return optimizer.weight_decay > 0.0 and not isinstance(optimizer.decay, float)
        return isinstance(optimizer, TorchMuonSpec | SGD | AdamW) and optimizer.weight_decay > 0.0

    @property
    def seed(self) -> int:
        """The seed."""
        return self.spec.seed

    @cached_property
    def milliseconds(self) -> float | None:
        """Wall time of a training step, without evaluation, telemetry and storage.

        The median over the parts of the run between two records, since a shared machine is slow for a while; the mean
        if the run has fewer than LEAST_PARTS.
        """
        times = {int(record["step"]): _stepped(record) for record in thin(self.records("time"))}
        parts = [(b - a) / (t - s) for (s, a), (t, b) in pairwise(sorted(times.items()))]
        if len(parts) < LEAST_PARTS:
            parts = [_stepped(self.seconds) / self.step] if self.step else []
        return 1000.0 * median(parts) if parts and median(parts) > 0.0 else None

    def value(self, metric: str) -> float | None:
        """The final value of a metric; None unless the run finished."""
        return self.result.get(metric) if self.state == "finished" else None

    @cached_property
    def setting(self) -> str:
        """Key of comparable runs: everything but oracle, step size, momentum, seed and recording options."""
        plain = json.loads(msgspec.json.encode(self.spec, order="sorted"))
        for name in ("seed", "telemetry", "record_every", "evaluate_every", "checkpoint_every", "device"):
            plain.pop(name)
        for name in ("polar", "lr", "momentum"):
            plain["optimizer"].pop(name, None)
        return json.dumps(plain)
