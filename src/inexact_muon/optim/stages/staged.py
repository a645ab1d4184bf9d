"""A batch with stages in one step."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from torch import Tensor

from inexact_muon.optim.batches import Batch
from inexact_muon.optim.stages.applied import measure_applied
from inexact_muon.optim.stages.pieces import Pieces
from inexact_muon.optim.stages.step import Commit, change_inputs, pieces_of, update_weights_


class Staged:
    """Runs the stages of a batch around the oracle, and writes weights and states once all directions are known.

    Args:
        prepared: the members whose LMO inputs this rank has prepared.
        inputs: those; the stages before the oracle change them in place.
    """

    def __init__(self, batch: Batch, prepared: Batch, inputs: list[Tensor]) -> None:
        self.batch, self.prepared, self.inputs = batch, prepared, inputs
        self.commits: list[Commit] = []
        if batch.members[0].before:
            self.inputs, commit = change_inputs(prepared, inputs)
            self.commits.append(commit)

    def finish(self, zs: list[Tensor], lengths: list[float], optimizer: Any) -> Generator[None, None, None]:
        """The stages after the oracle, on its answers; measured if they are sampled."""
        self.z: Pieces = pieces_of(self.batch, zs, optimizer)
        self.lengths = lengths
        sampled = any(id(m.p) in optimizer.telemetry.chosen for m in self.batch.members)
        norms = self.z.squares() if sampled else None
        for stage in self.batch.members[0].after:
            stage(self.z)
        if norms is not None:
            yield from measure_applied(self.batch, self.prepared, self.inputs, self.z, norms, optimizer)

    def write(self, optimizer: Any) -> list[Tensor]:
        """Update the weights and the states of stages; returns the LMO inputs as they were before the stages."""
        update_weights_(self.batch, self.z, self.lengths, optimizer)
        for commit in (*self.commits, self.z.commit):
            commit()
        return self.inputs
