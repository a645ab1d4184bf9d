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
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from inexact_muon.optim.algorithm import update_weights_
from inexact_muon.optim.assembly import Directions, RankRoute
from inexact_muon.optim.batches import Batch, Member
from inexact_muon.optim.ranks import Ranks, assign, spread
from inexact_muon.optim.stacks import Stacks
from inexact_muon.optim.stepplan import StepPlan
from inexact_muon.parallel.compressors import Compressor, LowRank
from inexact_muon.parallel.wire import Wire, has_all_to_all
from inexact_muon.polar.batching import limit_on

T = TypeVar("T")


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
            for chunk in spread(alike, limit_on(alike[0].piece.device, optimizer.memory_limit)):
                chunk.sort(key=lambda m: m.owner)
                plan.chunks.append([Batch(chunk, route=ErrorFeedback(chunk, self.team.wire, self.up, self.down))])
        plan.members = members
        return plan


@dataclass(eq=False)
class ErrorFeedback(RankRoute):
    """The equations above for the members of a batch; W is updated here, and the direction that is left is zero.

    Each way all messages of the batch are bytes of one all-to-all: to a server those of its members, from it those of
    its weights.

    Attributes:
        members: in the order of their servers.
    """

    members: list[Member]
    wire: Wire
    up: Compressor
    down: Compressor

    def __post_init__(self) -> None:
        place = self.members[0].place
        self.ranks, self.group = place.ranks, place.groups[0] if place.shared else None
        self.mine = [m.owner == place.me for m in self.members] if place.shared else [True] * len(self.members)
        here = self._served(self.members)
        stacks = Stacks(here[0].ball, [m.whole for m in here], here[0].buffers[0]) if here else None
        self.solved = Batch(here, stacks) if here else None

    def allocate(self, like: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """The inputs; nothing is stacked."""
        return [torch.empty_like(m.buffers[0]) for m in self.members], []

    def directions(
        self, batch: Batch, inputs: list[Tensor], stacks: list[Tensor], optimizer: Any
    ) -> Generator[None, None, Directions]:
        """Exchange the changes of momenta, update the servers, and exchange the changes of weights."""
        yield from self._estimate(inputs)
        self._update_servers(optimizer, (yield from self._mean_momenta(inputs, optimizer)))
        yield from self._update_weights()
        return [], []

    def _served(self, values: Sequence[T]) -> list[T]:
        """Those of the members that this rank serves."""
        return [value for value, mine in zip(values, self.mine, strict=True) if mine]

    def _estimate(self, ms: Sequence[Tensor]) -> Generator[None, None, None]:
        """R_j = C(M_j - G_j), G_j <- G_j + R_j, and G <- G + mean_j R_j on the server."""
        messages = []
        for m, x, serves in zip(self.members, ms, self.mine, strict=True):
            if not serves:
                m.state.pop("server_estimate", None)
                m.state.pop("server_weight", None)
            estimate = _state(m, "worker_estimate", torch.zeros_like(x))
            messages.append(self.up.encode(x - estimate))
            estimate += self.up.decode(messages[-1], estimate.shape)
        arrived = yield from self._to_servers(messages, [self.up.empty(x) for x in self._served(ms)])
        for m, x, parts in zip(self._served(self.members), self._served(ms), arrived, strict=True):
            total = _state(m, "server_estimate", torch.zeros_like(x))
            for part in parts:
                total.add_(self.up.decode(part, total.shape), alpha=1.0 / len(parts))

    def _mean_momenta(self, ms: Sequence[Tensor], optimizer: Any) -> Generator[None, None, dict[int, Tensor]]:
        """id of a measured parameter -> mean_j M_j, which G estimates, on its server."""
        if not any(id(m.p) in optimizer.observed for m in self.members):
            return {}
        messages = [[x] if id(m.p) in optimizer.observed else [] for m, x in zip(self.members, ms, strict=True)]
        buffers = [[torch.empty_like(x) for x in message] for message in self._served(messages)]
        arrived = yield from self._to_servers(messages, buffers)
        rows = [(m, parts) for m, parts in zip(self._served(self.members), arrived, strict=True) if parts[0]]
        return {id(m.p): torch.stack([part for (part,) in parts]).mean(0) for m, parts in rows}

    def _update_servers(self, optimizer: Any, means: dict[int, Tensor]) -> None:
        """X <- (1 - lr decay) X - lr length z(G) on servers."""
        if self.solved is None or self.solved.stacks is None:
            return
        estimates, stacks = self.solved.stacks.allocate()
        for m, x in zip(self.solved.members, estimates, strict=True):
            x.copy_(m.state["server_estimate"])
        zs, lengths = optimizer.solve(self.solved, estimates, stacks, exact=means)
        directions = self.solved.stacks.split(zs)
        for m, z, length in zip(self.solved.members, directions, lengths, strict=True):
            if id(m.p) in optimizer.telemetry.chosen:
                optimizer.telemetry.record_sizes(id(m.p), z, m.piece, float(m.group["lr"]) * length)
        servers = [replace(m, piece=_state(m, "server_weight", m.piece.detach())) for m in self.solved.members]
        update_weights_(Batch(servers), directions, lengths)

    def _update_weights(self) -> Generator[None, None, None]:
        """S = D(X - W), and W <- W + S everywhere."""
        own = _packed(
            [self.down.encode(m.state["server_weight"] - m.piece) for m in self._served(self.members)],
            self.members[0].piece,
        )
        buffers = [self.down.empty(m.piece) for m in self.members]
        counts = [_bytes([b for b, m in zip(buffers, self.members, strict=True) if m.owner == r]) for r in self.ranks]
        ranks = len(self.ranks)
        arrived = yield from self._swapped(torch.cat([own] * ranks), [own.numel()] * ranks, counts)
        _unpack(arrived, buffers)
        for m, message in zip(self.members, buffers, strict=True):
            m.piece.add_(self.down.decode(message, m.piece.shape))

    def _to_servers(
        self, messages: Sequence[Sequence[Tensor]], buffers: Sequence[list[Tensor]]
    ) -> Generator[None, None, list[list[list[Tensor]]]]:
        """For each member that this rank serves the messages of all ranks; `buffers` are shaped like one of them."""
        counts = [_bytes([x for x, m in zip(messages, self.members, strict=True) if m.owner == r]) for r in self.ranks]
        own = _bytes(buffers)
        flat = _packed(messages, self.members[0].piece)
        arrived = yield from self._swapped(flat, counts, [own] * len(self.ranks))
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
