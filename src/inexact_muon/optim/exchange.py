"""EF21-Muon (arXiv 2510.00643): compressed exchange of momenta and weights with error feedback.

    worker j     M_j <- momentum of its own gradients;  R_j = C(M_j - G_j);  G_j <- G_j + R_j;  sends R_j
    server       G <- G + mean_j R_j;  X <- (1 - lr decay) X - lr length z(G);  S = D(X - W);  sends S
    all ranks    W <- W + S

Every rank is a worker; the owner of a parameter is its server. A worker's state is G_j ("worker_estimate"), a server's
G ("server_estimate") and X ("server_weight"). W is the parameter, equal on all ranks.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from inexact_muon.optim.algorithm import update_weights_
from inexact_muon.optim.assembly import RankRoute
from inexact_muon.optim.batches import Batch, Member, Stacks
from inexact_muon.optim.owned import Found
from inexact_muon.optim.ranks import Ranks, assign, spread
from inexact_muon.optim.stepplan import StepPlan
from inexact_muon.parallel.compressors import Compressor, LowRank
from inexact_muon.parallel.wire import Wire, has_all_to_all
from inexact_muon.polar.batching import limit_on


@dataclass
class Exchange(Ranks):
    """The ranks of EF21-Muon."""

    up: Compressor = field(default_factory=LowRank)
    down: Compressor = field(default_factory=LowRank)

    def __post_init__(self) -> None:
        super().__post_init__()
        if dist.is_available() and dist.is_initialized() and not has_all_to_all(self.team.process_group):
            backend = dist.get_backend(self.team.process_group)
            raise ValueError(f"EF21Muon needs point-to-point messages, which backend {backend} does not support")

    def plan(self, members: list[Member], optimizer: Any) -> StepPlan:
        plan = super().plan([m for m in members if m.group["algorithm"] == "adamw"], optimizer)
        kinds: dict[Any, list[Member]] = {}
        for m in members:
            if m.group["algorithm"] == "lmo":
                kinds.setdefault(m.kind, []).append(m)
        for some in kinds.values():
            assign(some)
            for chunk in spread(some, limit_on(some[0].piece.device, optimizer.memory_limit)):
                plan.chunks.append([Batch(chunk, route=ErrorFeedback(chunk, self.team.wire, self.up, self.down))])
        plan.members = members
        return plan


@dataclass(eq=False)
class ErrorFeedback(RankRoute):
    """The equations above for the members of a batch; W is updated here, and the direction that is left is zero."""

    members: list[Member]
    wire: Wire
    up: Compressor
    down: Compressor

    def __post_init__(self) -> None:
        for m in self.members:
            if m.place.shared:  # X and G stay on the rank that first served the parameter
                m.owner = m.state.setdefault("server", m.owner)
        self.mine = [m.owner == m.place.me for m in self.members]
        here = [m for m, mine in zip(self.members, self.mine, strict=True) if mine]
        stacks = Stacks(here[0].ball, [m.whole for m in here], here[0].buffers[0]) if here else None
        self.solved = Batch(here, stacks) if here else None

    def allocate(self, like: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """The inputs; nothing is stacked."""
        return [torch.empty_like(m.buffers[0]) for m in self.members], []

    def directions(
        self, batch: Batch, inputs: list[Tensor], stacks: list[Tensor], optimizer: Any
    ) -> Generator[None, None, Found]:
        """Exchange the changes of momenta, update the servers, and exchange the changes of weights."""
        self._estimate(inputs)
        self._update_servers(optimizer, self._mean_momenta(inputs, optimizer))
        self._update_weights()
        return [], []
        yield  # makes this a generator, as other routes are

    def _estimate(self, ms: Sequence[Tensor]) -> None:
        """R_j = C(M_j - G_j), G_j <- G_j + R_j, and G <- G + mean_j R_j on the server."""
        received, sends, receives = [], [], []
        for m, x, serves in zip(self.members, ms, self.mine, strict=True):
            if not serves:
                m.state.pop("server_estimate", None)
                m.state.pop("server_weight", None)
            estimate = _state(m, "worker_estimate", torch.zeros_like(x))
            message = self.up.encode(x - estimate)
            estimate += self.up.decode(message, estimate.shape)
            if serves:
                buffers = {rank: message if rank == m.place.me else self.up.empty(x) for rank in m.place.ranks}
                receives += [(rank, y) for rank in m.place.ranks if rank != m.place.me for y in buffers[rank]]
                received.append((m, x, list(buffers.values())))
            else:
                sends += [(m.owner, y) for y in message]
        self.wire.exchange(sends, receives).wait()
        for m, x, messages in received:
            total = _state(m, "server_estimate", torch.zeros_like(x))
            for message in messages:
                total.add_(self.up.decode(message, total.shape), alpha=1.0 / len(messages))

    def _mean_momenta(self, ms: Sequence[Tensor], optimizer: Any) -> dict[int, Tensor]:
        """id of a measured parameter -> mean_j M_j, which G estimates, on its server."""
        sends, receives, known = [], [], {}
        for m, x, serves in zip(self.members, ms, self.mine, strict=True):
            if id(m.p) not in optimizer.wanted:
                continue
            if serves:
                parts = [x if rank == m.place.me else torch.empty_like(x) for rank in m.place.ranks]
                receives += [(rank, y) for rank, y in zip(m.place.ranks, parts, strict=True) if rank != m.place.me]
                known[id(m.p)] = parts
            else:
                sends.append((m.owner, x))
        self.wire.exchange(sends, receives).wait()
        return {key: torch.stack(parts).mean(0) for key, parts in known.items()}

    def _update_servers(self, optimizer: Any, means: dict[int, Tensor]) -> None:
        """X <- (1 - lr decay) X - lr length z(G) on servers."""
        if self.solved is None or self.solved.stacks is None:
            return
        estimates, stacks = self.solved.stacks.allocate()
        for m, x in zip(self.solved.members, estimates, strict=True):
            x.copy_(m.state["server_estimate"])
        zs, lengths = optimizer.solve(self.solved, estimates, stacks, exact=means)
        found = self.solved.stacks.split(zs)
        for m, z, length in zip(self.solved.members, found, lengths, strict=True):
            if id(m.p) in optimizer.telemetry.chosen:
                optimizer.telemetry.record_sizes(id(m.p), z, m.piece, float(m.group["lr"]) * length)
        servers = [replace(m, piece=_state(m, "server_weight", m.piece.detach())) for m in self.solved.members]
        update_weights_(Batch(servers), found, lengths)

    def _update_weights(self) -> None:
        """S = D(X - W), and W <- W + S everywhere."""
        sends, receives, shifts = [], [], []
        for m, serves in zip(self.members, self.mine, strict=True):
            if serves:
                message = self.down.encode(m.state["server_weight"] - m.piece)
                sends += [(rank, x) for rank in m.place.ranks if rank != m.place.me for x in message]
            else:
                message = self.down.empty(m.piece)
                receives += [(m.owner, x) for x in message]
            shifts.append((m.piece, message))
        self.wire.exchange(sends, receives).wait()
        for p, message in shifts:
            p.add_(self.down.decode(message, p.shape))


def _state(member: Member, key: str, start: Tensor) -> Tensor:
    """An entry of the state, initialised by a copy of `start`."""
    if key not in member.state:
        member.state[key] = start.clone()
    return member.state[key]
