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

from inexact_muon_lab.spec.arms import RECORDING
from inexact_muon_lab.spec.optimizers import SGD, AdamW, MuonSpec, TorchMuonSpec
from inexact_muon_lab.spec.oracle_text import OracleText, parts
from inexact_muon_lab.spec.spec import RunSpec, tag
from inexact_muon_lab.statistics import Cell
from inexact_muon_lab.store import store
from inexact_muon_lab.store.curves import Record, thin
from inexact_muon_lab.store.store import Outcome

STEPPED = ("data", "forward", "backward", "oracle", "optimizer")
"""Timed parts that belong to a training step."""
LEAST_PARTS = 5
"""Fewest parts of a run of whose times a median is taken."""
Arm = tuple[OracleText | None, Cell]
"""(oracle, (step size, momentum))"""


def _stepped(seconds: Mapping[str, Any]) -> float:
    return sum([float(seconds.get(part) or 0.0) for part in STEPPED])


@dataclass
class RunRecord:
    """One run: spec and results, and what follows from them. What needs its curves reads them on first access.

    Attributes:
        seconds: wall time by part.
        result: the last value of every metric; `loss`, `train_loss` and `accuracy` are None unless the run finished.
        lost: it ended without a (finite) result, which is not missing by chance: it counts against its arm.
        oracle: None for an optimizer without one.
        iterations: of the oracle; 0 if it counts none.
        lr: gamma.
        momentum: beta = 1 - alpha; None for AdamW, which has two.
        cell: (step size, momentum), a place in a grid.
        arm: what distinguishes comparable runs of one seed: oracle, step size, momentum.
        tied: weight decay is tied to lr: runs at different lr differ in decay, too.
    """

    folder: Path
    study: str
    id: str
    spec: RunSpec
    state: str
    outcome: Outcome | None

    def __post_init__(self) -> None:
        optimizer = self.spec.optimizer
        self.seed, self.optimizer, self.problem = self.spec.seed, tag(type(optimizer)), tag(type(self.spec.problem))
        self.seconds: Mapping[str, float] = self.outcome.seconds if self.outcome else {}
        self.result: Mapping[str, float | None] = self.outcome.result if self.outcome else {}
        self.loss, self.train_loss, self.accuracy = map(self.value, ("loss", "train_loss", "accuracy"))
        finished = self.state == "finished"
        self.lost = self.state in ("diverged", "failed") or (finished and None in self.result.values())
        self.oracle = parts(text) if (text := self.spec.polar) else None
        self.iterations = (self.oracle.iterations if self.oracle else None) or 0
        self.lr, self.momentum = optimizer.lr, None if isinstance(optimizer, AdamW) else optimizer.momentum
        self.cell: Cell = (self.lr, self.momentum or 0.0)
        self.arm: Arm = (self.oracle, self.cell)
        if isinstance(optimizer, MuonSpec):
            self.tied = optimizer.weight_decay > 0.0 and not isinstance(optimizer.decay, float)
        else:
            self.tied = isinstance(optimizer, TorchMuonSpec | SGD | AdamW) and optimizer.weight_decay > 0.0

    def value(self, metric: str) -> float | None:
        """The final value of a metric; None unless the run finished."""
        return self.result.get(metric) if self.state == "finished" else None

    @cached_property
    def curves(self) -> list[Record]:
        """The records of the run, read on first access."""
        return store.intact_curves(self.folder, self.id, self.outcome)

    @cached_property
    def _by_kind(self) -> dict[str, list[Record]]:
        kinds: dict[str, list[Record]] = {}
        for record in self.curves:
            kinds.setdefault(record["kind"], []).append(record)
        return kinds

    def records(self, kind: str) -> list[Record]:
        return self._by_kind.get(kind, [])

    @cached_property
    def lmo_errors(self) -> dict[int, float]:
        """{step: LMO error summed over layers}."""
        return {record["step"]: record["sum"] for record in self.records("lmo") if record["sum"] is not None}

    @property
    def last_lmo_error(self) -> float | None:
        """The last LMO error that is not zero."""
        return next((error for error in reversed(self.lmo_errors.values()) if error), None)

    @cached_property
    def inexactness(self) -> list[tuple[int, str, float, float, float]]:
        """(step, layer, delta, gap, overshoot) of every record in which all three are finite."""
        rows = []
        for record in self.records("lmo"):
            for layer, delta in record["delta"].items():
                gap, overshoot = record["gap"].get(layer), record["overshoot"].get(layer)
                if delta is not None and gap is not None and overshoot is not None:
                    rows.append((record["step"], layer, delta, gap, overshoot))
        return rows

    @cached_property
    def milliseconds(self) -> float | None:
        """Wall time of a training step, without evaluation, telemetry and storage.

        The median over the parts of the run between two records, since a shared machine is slow for a while; the mean
        if the run has fewer than LEAST_PARTS.
        """
        times = {int(record["step"]): _stepped(record) for record in thin(self.records("time"))}
        parts = [(b - a) / (t - s) for (s, a), (t, b) in pairwise(sorted(times.items()))]
        if len(parts) < LEAST_PARTS:
            parts = [_stepped(self.seconds) / self.outcome.step] if self.outcome and self.outcome.step else []
        return 1000.0 * median(parts) if parts and median(parts) > 0.0 else None

    @cached_property
    def setting(self) -> str:
        """Key of comparable runs: everything but oracle, step size, momentum, seed and recording options."""
        plain = json.loads(msgspec.json.encode(self.spec, order="sorted"))
        for name in RECORDING:
            plain.pop(name)
        for name in ("polar", "lr", "momentum"):
            plain["optimizer"].pop(name, None)
        return json.dumps(plain)
