"""EF21-Muon (arXiv 2510.00643): momenta go up and weights come down, as compressed changes, with error feedback.

    worker j     M_j <- momentum of its own gradients;  R_j = C(M_j - G_j);  G_j <- G_j + R_j;  sends R_j
    server       G <- G + mean_j R_j;  X <- (1 - lr decay) X - lr factor z(G);  S = D(X - W);  sends S
    everyone     W <- W + S

Every rank is a worker, and the owner of a parameter is its server. State of a worker is G_j ("told"), of a server
G ("heard") and X ("exact"); W is the parameter, the same on every rank. Gradients are those of a rank's own part of the
batch: nothing may average them before.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from inexact_muon.parallel.compressors import Compressor
from inexact_muon.parallel.tasks import Answer, Run, Solver, Task


def ef21(tasks: Sequence[Task], solver: Solver, up: Compressor, down: Compressor) -> Run:
    """One step of these parameters, which are written here."""
    heard, sends, receives = [], [], []
    for task in tasks:
        told = _state(task, "told", torch.zeros_like)
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
    yield
    under_way.wait()
    mine = [(task, parts) for task, parts in zip(tasks, heard, strict=True) if task.mine]
    for task, parts in mine:
        total = _state(task, "heard", torch.zeros_like)
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
            x = _state(task, "exact", lambda _, w=w: w.clone())
            solver.walk(task, x, answer)
            message = down.encode(x - w)
            sends += [(rank, part) for rank in task.place.ranks if rank != task.place.me for part in message]
        else:
            message = down.empty(task.p)
            receives += [(task.owner, part) for part in message]
        shifts.append(message)
    under_way = solver.wire.exchange(sends, receives)
    yield
    under_way.wait()
    for task, message in zip(tasks, shifts, strict=True):
        task.p.add_(down.decode(message, task.p.shape))
    return [Answer(None) for _ in tasks]


def _true_momenta(tasks: Sequence[Task], solver: Solver):  # type: ignore[no-untyped-def]
    """mean_j M_j of the tasks that are to be measured, at their owners: what G stands for."""
    wanted = [task for task in tasks if solver.wants(task)]
    totals: dict[int, Tensor] = {}
    sends, receives = [], []
    for task in wanted:
        if task.mine:
            buffers = [task.m if r == task.place.me else torch.empty_like(task.m) for r in task.place.ranks]
            receives += [(r, x) for r, x in zip(task.place.ranks, buffers, strict=True) if r != task.place.me]
            totals[id(task)] = buffers  # type: ignore[assignment]
        else:
            sends.append((task.owner, task.m))
    if wanted:
        under_way = solver.wire.exchange(sends, receives)
        yield
        under_way.wait()
    return {key: torch.stack(list(parts)).mean(0) for key, parts in totals.items()}


def _state(task: Task, key: str, make) -> Tensor:  # type: ignore[no-untyped-def]
    if key not in task.state:
        task.state[key] = make(task.m)
    value: Tensor = task.state[key]
    return value
