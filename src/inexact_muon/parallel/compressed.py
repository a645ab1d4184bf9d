"""EF21-Muon (arXiv 2510.00643): momenta go up and weights come down, as compressed changes, with error feedback.

    worker j     M_j <- momentum of its own gradients;  R_j = C(M_j - G_j);  G_j <- G_j + R_j;  sends R_j
    server       G <- G + mean_j R_j;  X <- (1 - lr decay) X - lr factor z(G);  S = D(X - W);  sends S
    everyone     W <- W + S

Every rank is a worker, and the owner of a parameter is its server. State of a worker is G_j ("told"), of a server
G ("heard") and X ("exact"); W is the parameter, the same on every rank. Gradients are those of a rank's own part of the
batch: nothing may average them before.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import torch
from torch import Tensor

from inexact_muon.parallel.compressors import Compressor
from inexact_muon.parallel.place import Place
from inexact_muon.parallel.tasks import Answer, Run, Solver, Task
from inexact_muon.parallel.wire import Wire


def ef21(tasks: Sequence[Task], solver: Solver, up: Compressor, down: Compressor) -> Run:
    """One step of these parameters, which are written here."""
    heard, sends, receives = [], [], []
    for task in tasks:
        if task.place.shared:
            task.owner = task.state.setdefault("server", task.owner)  # whatever moves next time: X and G are there
        if not task.mine:
            task.state.pop("heard", None)
            task.state.pop("exact", None)
        told = _state(task, "told", task.m.new_zeros(()).expand_as(task.m))
        message = up.encode(task.m - told)
        told += up.decode(message, told.shape)
        if task.mine:
            others = [rank for rank in task.place.ranks if rank != task.place.me]
            buffers = {rank: message if rank == task.place.me else up.empty(task.m) for rank in task.place.ranks}
            receives += [(rank, x) for rank in others for x in buffers[rank]]
            heard.append([buffers[rank] for rank in task.place.ranks])
        else:
            sends += [(task.owner, x) for x in message]
            heard.append([])
    under_way = solver.wire.exchange(sends, receives)
    momenta = yield from _true_momenta(tasks, solver)
    if any(task.place.shared for task in tasks):
        yield
    under_way.wait()
    mine = [(task, parts) for task, parts in zip(tasks, heard, strict=True) if task.mine]
    for task, parts in mine:
        total = _state(task, "heard", task.m.new_zeros(()).expand_as(task.m))
        for part in parts:
            total.add_(up.decode(part, total.shape), alpha=1.0 / len(parts))
    answers = solver.solve([task for task, _ in mine], [task.state["heard"] for task, _ in mine])
    found = dict(zip((id(task) for task, _ in mine), answers, strict=True))
    sends, receives, shifts = [], [], []
    for task in tasks:
        if task.mine:
            answer, w = found[id(task)], task.p
            if solver.wants(task):
                assert answer.plain is not None
                solver.record(task, momenta[id(task)], answer.plain, exact=True)
            x = _state(task, "exact", w)
            solver.walk(task, x, answer)
            message = down.encode(x - w)
            sends += [(rank, part) for rank in task.place.ranks if rank != task.place.me for part in message]
        else:
            message = down.empty(task.p)
            receives += [(task.owner, part) for part in message]
        shifts.append(message)
    under_way = solver.wire.exchange(sends, receives)
    if any(task.place.shared for task in tasks):
        yield
    under_way.wait()
    for task, message in zip(tasks, shifts, strict=True):
        task.p.add_(down.decode(message, task.p.shape))
    return [Answer(None) for _ in tasks]


def _true_momenta(tasks: Sequence[Task], solver: Solver) -> Generator[None, None, dict[int, Tensor]]:
    """mean_j M_j of the tasks that are to be measured, at their owners: what G stands for."""
    buffers: dict[int, list[Tensor]] = {}
    sends, receives = [], []
    for task in tasks:
        if solver.wants(task) and task.mine:
            found = [task.m if rank == task.place.me else torch.empty_like(task.m) for rank in task.place.ranks]
            receives += [(rank, x) for rank, x in zip(task.place.ranks, found, strict=True) if rank != task.place.me]
            buffers[id(task)] = found
        elif solver.wants(task):
            sends.append((task.owner, task.m))
    under_way = solver.wire.exchange(sends, receives)
    if sends or receives:
        yield
    under_way.wait()
    return {key: torch.stack(parts).mean(0) for key, parts in buffers.items()}


def _state(task: Task, key: str, start: Tensor) -> Tensor:
    if key not in task.state:
        task.state[key] = start.clone()
    value: Tensor = task.state[key]
    return value


def synchronise(state: dict[str, Any], place: Place, wire: Wire) -> None:
    """The same state of a parameter on every rank: mean momentum, and G and X of the server; G_j is G everywhere.

    The mean of the G_j is G before and after, so that error feedback goes on as it was; ranks start with the same M_j.
    """
    server = state.pop("server", None)
    if server is None:
        return
    buffer = state["momentum_buffer"]
    buffer.copy_(wire.reduce(buffer.clone(), place.groups) / len(place.ranks))
    for key in ("heard", "exact"):
        kept = state.get(key)
        value = kept if server == place.me and kept is not None else torch.zeros_like(state["told"])
        state[key] = wire.reduce(value.clone(), place.groups)
    state["told"].copy_(state["heard"])
