"""EF21-Muon (arXiv 2510.00643): compressed exchange of momenta and weights with error feedback.

    worker j     M_j <- momentum of its own gradients;  R_j = C(M_j - G_j);  G_j <- G_j + R_j;  sends R_j
    server       G <- G + mean_j R_j;  X <- (1 - lr decay) X - lr length z(G);  S = D(X - W);  sends S
    all ranks    W <- W + S

Every rank is a worker; the owner of a parameter is its server. A worker's state is G_j ("worker_estimate"), a server's
G ("server_estimate") and X ("server_weight"). W is the parameter, equal on all ranks.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from inexact_muon.optim.algorithm import update_weights_
from inexact_muon.optim.assembly import RankRoute, Run
from inexact_muon.optim.batches import Batch, Member
from inexact_muon.optim.ranks import Ranks, assign, spread
from inexact_muon.optim.stepplan import StepPlan
from inexact_muon.parallel.compressors import Compressor, LowRank
from inexact_muon.parallel.wire import has_all_to_all
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
            raise ValueError(f"EF21Muon needs an all-to-all, which backend {backend} does not support")

    def plan(self, members: list[Member], optimizer: Any) -> StepPlan:
        plan = super().plan([m for m in members if m.group["algorithm"] == "adamw"], optimizer)
        kinds: dict[Any, list[Member]] = {}
        for m in members:
            if m.group["algorithm"] == "lmo":
                kinds.setdefault(m.kind, []).append(m)
        for alike in kinds.values():
            assign(alike)
            for m in alike:
                if m.place.shared:  # X and G stay on the rank that first served the parameter
                    m.owner = m.state.setdefault("server", m.owner)
            group = self.team.group(alike[0].place) if alike[0].place.shared else None
            for chunk in spread(alike, limit_on(alike[0].piece.device, optimizer.memory_limit)):
                chunk.sort(key=lambda m: m.owner)
                route = ErrorFeedback(chunk, group, self.team.wire, self.up, self.down)
                plan.chunks.append([Batch(chunk, route=route)])
        plan.members = members
        return plan


@dataclass(eq=False)
class ErrorFeedback(RankRoute):
    """The equations above for the members of a batch; W is updated here, and the direction that is left is zero.

    Each way all messages of the batch are bytes of one all-to-all: to a server those of its members, from it those of
    its weights.
    """

    up: Compressor
    down: Compressor

    def __post_init__(self) -> None:
        self.ranks = self.members[0].place.ranks
        self.mine = [k for k, m in enumerate(self.members) if m.owner == m.place.me]
        served = [self.members[k] for k in self.mine]
        self.work_on(served, [m.whole for m in served])

    def directions(self, batch: Batch, inputs: list[Tensor], stacks: list[Tensor], optimizer: Any) -> Run:
        """Exchange the changes of momenta, update the servers, and exchange the changes of weights."""
        yield from self._estimate(inputs)
        means = yield from self._mean_momenta(inputs, optimizer.observed)
        if self.solved is not None:
            self._update_servers(self.solved.members, optimizer, means)
        yield from self._update_weights()
        return [], []

    def _estimate(self, ms: Sequence[Tensor]) -> Generator[None, None, None]:
        """R_j = C(M_j - G_j), G_j <- G_j + R_j, and G <- G + mean_j R_j on the server."""
        messages = []
        for m, x in zip(self.members, ms, strict=True):
            if m.owner != m.place.me:
                m.state.pop("server_estimate", None)
                m.state.pop("server_weight", None)
            estimate = _state(m, "worker_estimate", torch.zeros_like(x))
            messages.append(self.up.encode(x - estimate))
            estimate += self.up.decode(messages[-1], estimate.shape)
        arrived = yield from self._to_servers(messages, [self.up.empty(ms[k]) for k in self.mine])
        for k, parts in zip(self.mine, arrived, strict=True):
            total = _state(self.members[k], "server_estimate", torch.zeros_like(ms[k]))
            for part in parts:
                total.add_(self.up.decode(part, total.shape), alpha=1.0 / len(parts))

    def _mean_momenta(
        self, ms: Sequence[Tensor], observed: Collection[int]
    ) -> Generator[None, None, dict[int, Tensor]]:
        """id of a measured parameter -> mean_j M_j, which G estimates, on its server."""
        messages = [[x] if id(m.p) in observed else [] for m, x in zip(self.members, ms, strict=True)]
        if not any(messages):
            return {}
        buffers = [[torch.empty_like(x) for x in messages[k]] for k in self.mine]
        arrived = yield from self._to_servers(messages, buffers)
        rows = [(k, parts) for k, parts in zip(self.mine, arrived, strict=True) if messages[k]]
        return {id(self.members[k].p): torch.stack([part for (part,) in parts]).mean(0) for k, parts in rows}

    def _update_servers(self, served: Sequence[Member], optimizer: Any, means: dict[int, Tensor]) -> None:
        """X <- (1 - lr decay) X - lr length z(G) on servers."""
        estimates, stacks = self.stacks.allocate()
        for m, x in zip(served, estimates, strict=True):
            x.copy_(m.state["server_estimate"])
        zs, lengths = optimizer.solve(self.solved, estimates, stacks, exact=means)
        directions = self.stacks.split(zs)
        for m, z, length in zip(served, directions, lengths, strict=True):
            if id(m.p) in optimizer.telemetry.chosen:
                optimizer.telemetry.record_sizes(id(m.p), z, m.piece, float(m.group["lr"]) * length)
        servers = [replace(m, piece=_state(m, "server_weight", m.piece.detach())) for m in served]
        update_weights_(Batch(servers), directions, lengths)

    def _update_weights(self) -> Generator[None, None, None]:
        """S = D(X - W), and W <- W + S everywhere."""
        served = [self.members[k] for k in self.mine]
        own = _packed([self.down.encode(m.state["server_weight"] - m.piece) for m in served], self.members[0].piece)
        buffers = [self.down.empty(m.piece) for m in self.members]
        ranks = len(self.ranks)
        arrived = yield from self._swapped(torch.cat([own] * ranks), [own.numel()] * ranks, self._by_owner(buffers))
        _unpack(arrived, buffers)
        for m, message in zip(self.members, buffers, strict=True):
            m.piece.add_(self.down.decode(message, m.piece.shape))

    def _by_owner(self, messages: Sequence[Sequence[Tensor]]) -> list[int]:
        """Bytes of the messages of each rank's members."""
        owners = [m.owner for m in self.members]
        return [_bytes([x for x, owner in zip(messages, owners, strict=True) if owner == r]) for r in self.ranks]

    def _to_servers(
        self, messages: Sequence[Sequence[Tensor]], buffers: Sequence[list[Tensor]]
    ) -> Generator[None, None, list[list[list[Tensor]]]]:
        """For each member that this rank serves the messages of all ranks; `buffers` are shaped like one of them."""
        own, flat = _bytes(buffers), _packed(messages, self.members[0].piece)
        arrived = yield from self._swapped(flat, self._by_owner(messages), [own] * len(self.ranks))
        by_rank = [[[torch.empty_like(x) for x in message] for message in buffers] for _ in self.ranks]
        for segment, parts in zip(torch.split(arrived, own) if own else [], by_rank, strict=own > 0):
            _unpack(segment, parts)
        return [[parts[k] for parts in by_rank] for k in range(len(buffers))]

    def _swapped(self, flat: Tensor, sent: list[int], received: list[int]) -> Generator[None, None, Tensor]:
        """`flat`, exchanged among the ranks; it yields while the messages are in flight."""
        if self.group is None:
            return flat
        arrived, pending = self.wire.swap(flat, sent, received, self.group)
        yield
        pending.wait()
        return arrived


def _packed(messages: Sequence[Sequence[Tensor]], like: Tensor) -> Tensor:
    """The bytes of all tensors, one after another."""
    parts = [x.reshape(-1).view(torch.uint8) for message in messages for x in message]
    return torch.cat(parts) if parts else like.new_empty(0, dtype=torch.uint8)


def _unpack(flat: Tensor, messages: Sequence[Sequence[Tensor]]) -> None:
    """Fill the tensors with bytes that `_packed` wrote."""
    tensors = [x for message in messages for x in message]
    for x, part in zip(tensors, torch.split(flat, [x.numel() * x.element_size() for x in tensors]), strict=True):
        x.view(-1).view(torch.uint8).copy_(part)


def _bytes(messages: Sequence[Sequence[Tensor]]) -> int:
    return sum(x.numel() * x.element_size() for message in messages for x in message)


def _state(member: Member, key: str, start: Tensor) -> Tensor:
    """An entry of the state, initialised by a copy of `start`."""
    if key not in member.state:
        member.state[key] = start.clone()
    return member.state[key]
