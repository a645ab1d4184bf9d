"""What is measured and observed of a step, and how it is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.optim import Optimizer

from inexact_muon.lmo import Ball
from inexact_muon.optim.batches import Batch, Member
from inexact_muon.optim.group import Group
from inexact_muon.optim.options import warn
from inexact_muon.optim.telemetry import Answer, Entry, Observer, Telemetry, combine, costs
from inexact_muon.views import View

if TYPE_CHECKING:
    from inexact_muon.inexactness import Inexactness


class Observed(Optimizer):
    """Base class of `Groups`: samples and observers.

    Attributes:
        observed: ids of the parameters whose directions are measured or observed in this step.
        own_momenta: whether each rank keeps its own momentum (EF21).
    """

    own_momenta: bool = False
    param_groups: list[Group]  # type: ignore[assignment]  # torch says: any dict
    telemetry: Telemetry
    observers: list[Observer]
    observed: frozenset[int]
    _names: dict[int, str]

    def named(self) -> Iterator[tuple[str, Tensor, Group]]:
        """(name or running index, parameter, group) of every parameter."""
        count = 0
        for group in self.param_groups:
            names = group.get("param_names")
            for i, p in enumerate(group["params"]):
                yield (names[i] if names else str(count)), p, group
                count += 1

    def _begin(self, entries: Sequence[Entry], plan: Any) -> None:
        """Choose the parameters to measure or observe in this step, without those that are skipped."""
        self.telemetry.begin(lambda: costs(self, entries))
        chosen = (observer.wants(self, entries) for observer in self.observers)
        self.observed = frozenset(self.telemetry.chosen).union(*chosen)
        if self.observed:
            fine = plan.finite_ids()
            self.observed &= fine
            self.telemetry.chosen &= fine
        self._names = {id(p): name for name, p, _ in self.named()} if self.observed else {}

    def _observe_batch(
        self, batch: Batch, ms: Sequence[Tensor], zs: Sequence[Tensor], exact: dict[int, Tensor] | None
    ) -> None:
        """Measure and report the observed directions of a batch whose members are whole here, on their owner."""
        assert batch.stacks is not None
        inputs = batch.stacks.split(ms) if exact is None else [exact.get(id(m.p)) for m in batch.members]
        for member, m, z in zip(batch.members, inputs, batch.stacks.split(zs), strict=True):
            if id(member.p) in self.observed and (member.place is None or member.owner == member.place.me):
                assert m is not None
                # Of EF21 z belongs to an estimate of m, so that it is no function of m's singular values.
                self.observe(id(member.p), member.ball, member.view, m, z, not self.own_momenta)

    def _record_sizes(self, batch: Batch, zs: Sequence[Tensor], lengths: Sequence[float]) -> None:
        """Record update and weight norms of sampled parameters; of replicas, the first does."""
        for m, z, length in zip(batch.members, zs, lengths, strict=True):
            if id(m.p) in self.telemetry.chosen and (m.place is None or m.place.copy == 0):
                self.telemetry.record_sizes(id(m.p), z, m.piece, float(m.group["lr"]) * length)

    def record_stacks(self, batch: Batch, scaled: Callable[[], Sequence[Tensor]], weights: Sequence[Tensor]) -> None:
        """The same from the stacks of stages; `scaled` gives their steps."""
        chosen = [k for k, m in enumerate(batch.members) if id(m.p) in self.telemetry.chosen]
        if chosen:
            steps, parts = (batch.layout.by_member(xs) for xs in (scaled(), weights))
        for k in chosen:
            m = batch.members[k]
            if m.place is None or m.place.copy == 0:
                for step, weight in zip(steps[k], parts[k], strict=True):
                    self.telemetry.record_sizes(id(m.p), step, weight)

    def observe(self, key: int, ball: Ball, view: View, m: Tensor, z: Tensor, estimable: bool = True) -> None:
        """Measure the direction z of a parameter for input m, if it is sampled, and pass both to the observers.

        Args:
            estimable: whether z is a function of m's singular values, which estimates of inexactness assume.
        """
        answers = _answers(ball, view, m, z)
        if not answers:
            return
        if key in self.telemetry.chosen:
            self.telemetry.record(key, combine(answers, exact=not estimable))
        for observer in self.observers:
            observer.seen(self._names[key], answers)

    def observe_applied(self, member: Member, m: Tensor, z: Tensor) -> None:
        """Measure the direction z that stages made of the oracle's answer, for the momentum m before them."""
        answers = _answers(member.ball, member.view, m, z)
        if answers:
            self.telemetry.record(id(member.p), combine(answers, exact=True), applied=True)

    def inexactness(self, applied: bool = False) -> dict[str, Inexactness]:
        """Inexactness of each LMO parameter at the last sampled step (see `sample_every`).

        A parameter of several matrices counts as one point of the product of their balls.

        Args:
            applied: not of the oracle's answer to its input, but of what stages make of the step: the direction after
                them, with the Frobenius norm of the answer, for the momentum before them. Without stages, the same.
        """
        if self.telemetry.every == 0:
            warn("nothing is measured: pass sample_every=10 to the optimizer")
        samples = ((name, self.telemetry.sample_of(p)) for name, p, _ in self.named())
        numbers = ((name, s.applied or s.inexactness if applied else s.inexactness) for name, s in samples if s)
        return {name: inexactness for name, inexactness in numbers if inexactness is not None}

    def stats(self) -> dict[str, dict[str, float]]:
        """Per parameter: lr, steps made and skipped; at the last sampled step also update RMS and its ratio to W."""
        table = {}
        for name, p, group in self.named():
            state, sample = self.state.get(p, {}), self.telemetry.sample_of(p)
            row: dict[str, Any] = {
                "lr": group["lr"],
                **{key: state[key] for key in ("step", "skipped") if key in state},
            }
            if sample is not None:
                row |= {"update_rms": sample.update_rms, "update_ratio": sample.update_ratio}
                columns = ("delta", "gap", "overshoot", "lifted", "factor")
                row |= {key: getattr(sample.inexactness, key, None) for key in columns}
                row |= {f"{key}_applied": getattr(sample.applied, key, None) for key in ("gap", "overshoot", "factor")}
            table[name] = {key: float(value) for key, value in row.items() if value is not None}
        return table


def _answers(ball: Ball, view: View, m: Tensor, z: Tensor) -> list[Answer]:
    """(ball, input, output) of each matrix of a parameter, from its LMO input and its direction."""
    pairs = zip(view.cut(m), view.cut(z.to(m.dtype)), strict=True)
    return [(ball, a, -ball.radius(a.shape) * b) for a, b in pairs if a.numel()]
