"""Candidate strategies, each recorded in a process of its own, and the best of them.

model      6 N D / (gpus * flops * efficiency)   N active parameters, D tokens: 2 N D forward, 4 N D backward
gradients  bytes that a rank sends to average them, float32 / link; none of matrices with EF21-Muon
step       model + gradients + the optimizer's modelled time; nothing of one overlaps with another
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, fields

from inexact_muon import strategies
from inexact_muon.parallel.compressors import Compressor
from inexact_muon_lab.plan.models import Model
from inexact_muon_lab.plan.pricing import Cost, Machine, price
from inexact_muon_lab.plan.step import Case, Layout, read_way, record


@dataclass(frozen=True)
class Measured:
    """The mean step of a case, and what its rank holds between steps, in bytes."""

    cost: Cost
    held: int
    matrices: int
    lmo_parameters: int


def measure(case: Case, machine: Machine) -> Measured:
    """Record a case in this process, and price it."""
    recording = record(case)
    priced = [(share, price(step, machine)) for share, step in recording.steps]
    mean = Cost(**{f.name: sum(share * getattr(c, f.name) for share, c in priced) for f in fields(Cost)})
    return Measured(mean, recording.held, recording.matrices, recording.lmo_parameters)


@dataclass(frozen=True)
class Candidate:
    """A strategy, what its step costs on the recorded rank, and the seconds of the whole step."""

    strategy: str
    exact: bool
    cost: Cost
    held: int
    model: float
    gradients: float

    @property
    def step(self) -> float:
        """Seconds of forward, backward and the optimizer."""
        return self.model + self.gradients + self.cost.seconds

    @property
    def share(self) -> float:
        """Fraction of the step that the optimizer takes."""
        return self.cost.seconds / self.step


@dataclass(frozen=True)
class Plan:
    """All candidates; those that cannot run, with the reason; the matrices of the model and their entries."""

    model: Model
    layout: Layout
    machine: Machine
    oracle: str
    candidates: tuple[Candidate, ...]
    refused: tuple[tuple[str, str], ...]
    matrices: int
    lmo_parameters: int

    def fits(self, c: Candidate) -> bool:
        """Whether weights, gradients, state and work space fit the memory; activations are not counted."""
        return c.held + c.cost.peak <= 1e9 * self.machine.memory

    @property
    def best(self) -> Candidate | None:
        """The shortest step of those that fit and update as one process does."""
        return min((c for c in self.candidates if c.exact and self.fits(c)), key=lambda c: c.step, default=None)


def plan(
    model: Model,
    layout: Layout,
    machine: Machine,
    oracle: str,
    tried: Sequence[str],
    report: Callable[[str], object] = str,
) -> Plan:
    """Record every candidate on rank 0, which has the most expensive matrix; `report` is told of each that ends."""
    refused = {text: why for text in tried if (why := _refusal(text, layout))}
    cases = {text: Case(model.weights, layout, text, oracle, triton=True) for text in tried if text not in refused}
    measured: dict[str, Measured] = {}
    for text, result in measure_all(cases, machine):
        report(f"recorded {text}, {len(measured) + 1} of {len(cases)} strategies on fake ranks")
        if isinstance(result, Measured):
            measured[text] = result
        else:
            refused[text] = str(result)
    if not measured:
        raise ValueError("; ".join(f"{text}: {why}" for text, why in refused.items()))
    one = next(iter(measured.values()))
    if not one.matrices:
        raise ValueError(f"{model.name} has no hidden matrix: there is nothing for an oracle to do")
    candidates = tuple(_candidate(text, measured[text], model, layout, machine) for text in tried if text in measured)
    return Plan(model, layout, machine, oracle, candidates, tuple(refused.items()), one.matrices, one.lmo_parameters)


def measure_all(cases: Mapping[str, Case], machine: Machine) -> Iterator[tuple[str, Measured | Exception]]:
    """(name, cost, or the error why there is none) as they end, each in a new process: torch remembers meshes."""
    context = multiprocessing.get_context("forkserver" if os.name == "posix" else "spawn")
    if os.name == "posix":
        context.set_forkserver_preload([__name__])
    workers = min(len(cases), os.cpu_count() or 1)
    with ProcessPoolExecutor(workers, mp_context=context, max_tasks_per_child=1) as pool:
        names = {pool.submit(measure, case, machine): name for name, case in cases.items()}
        for done in as_completed(names):
            error = done.exception()
            if error is not None and not isinstance(error, ValueError | NotImplementedError | RuntimeError):
                raise error
            yield names[done], error if error is not None else done.result()


def _refusal(text: str, layout: Layout) -> str:
    """Why a strategy does not apply to this layout; empty if it does."""
    way = read_way(text)
    if isinstance(way, strategies.GramReduced | strategies.BlockPeriodic) and layout.copies == layout.gpus:
        return "no matrix is divided"
    if isinstance(way, Compressor) and (layout.dp == 1 or layout.tp > 1):
        return "EF21-Muon needs workers with a whole copy of each parameter"
    return ""


def _candidate(text: str, measured: Measured, model: Model, layout: Layout, machine: Machine) -> Candidate:
    way = read_way(text)
    compressed = isinstance(way, Compressor)
    sent = (layout.dp - 1) / layout.dp * 4 * (0 if compressed else model.parameters) / layout.tp
    return Candidate(
        text,
        isinstance(way, strategies.Strategy) and way.exact,
        measured.cost,
        measured.held,
        6 * model.active_parameters * model.tokens / (layout.gpus * 1e12 * machine.flops * machine.efficiency),
        sent * (1 if layout.copies == 1 else 2) / (1e9 * machine.link),
    )
