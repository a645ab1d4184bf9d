"""EF21-Muon (arXiv 2510.00643): compressed exchange of momenta and weights with error feedback.

    worker j     M_j <- momentum of its own gradients;  R_j = C(M_j - G_j);  G_j <- G_j + R_j;  sends R_j
    server       G <- G + mean_j R_j;  X <- (1 - lr decay) X - lr length z(G);  S = D(X - W);  sends S
    all ranks    W <- W + S

Every rank is a worker; the owner of a parameter is its server. A worker's state is G_j ("worker_estimate"), a server's
G ("server_estimate") and X ("server_weight"). W is the parameter, equal on all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from inexact_muon.optim.algorithm import update_buffers_
from inexact_muon.optim.batches import Batch, Member
from inexact_muon.optim.groups import Groups
from inexact_muon.optim.shared import Shared, apply_directions_
from inexact_muon.parallel.compressors import Compressor, LowRank
from inexact_muon.parallel.shares import Share, solve
from inexact_muon.parallel.wire import has_point_to_point


@dataclass
class Exchange(Shared):
    """The distributed step of EF21-Muon."""

    up: Compressor = field(default_factory=LowRank)
    down: Compressor = field(default_factory=LowRank)

    def __post_init__(self) -> None:
        if dist.is_available() and dist.is_initialized() and not has_point_to_point(self.team.process_group):
            backend = dist.get_backend(self.team.process_group)
            raise ValueError(f"EF21Muon needs point-to-point messages, which backend {backend} does not support")

    def handles(self, p: Tensor) -> bool:
        return True

    def step(self, optimizer: Groups) -> None:
        lmo_entries = [(group, p) for group, p in self.entries if group["algorithm"] == "lmo"]
        for chunk in self._chunks(optimizer, lmo_entries):
            for batch, inputs, shares in chunk:
                for share, member in zip(shares, batch.members, strict=True):
                    if share.place.shared:  # X and G stay on the rank that first served the parameter
                        share.owner = member.state.setdefault("server", share.owner)
                self._estimate(batch, shares)
                self._average_momenta(shares)
                self._update_server(optimizer, batch, shares)
                update_buffers_(batch, inputs)
        adamw_entries = [(group, p) for group, p in self.entries if group["algorithm"] == "adamw"]
        own = [p.grad for _, p in adamw_entries]
        try:
            for _, p in adamw_entries:
                place = self.team.place(p)
                p.grad = self.team.wire.reduce(p.grad.clone(), place.groups) / len(place.ranks)  # type: ignore[union-attr]
            self.adamw(optimizer, adamw_entries)
        finally:
            for (_, p), gradient in zip(adamw_entries, own, strict=True):
                p.grad = gradient

    def _estimate(self, batch: Batch, shares: Sequence[Share]) -> None:
        """R_j = C(M_j - G_j), G_j <- G_j + R_j, and G <- G + mean_j R_j on the server."""
        received, sends, receives = [], [], []
        for share, member in zip(shares, batch.members, strict=True):
            if not share.mine:
                member.state.pop("server_estimate", None)
                member.state.pop("server_weight", None)
            mine = _state(member, "worker_estimate", torch.zeros_like(share.m))
            message = self.up.encode(share.m - mine)
            mine += self.up.decode(message, mine.shape)
            if share.mine:
                place = share.place
                buffers = {rank: message if rank == place.me else self.up.empty(share.m) for rank in place.ranks}
                receives += [(rank, x) for rank in place.ranks if rank != place.me for x in buffers[rank]]
                received.append((share, member, list(buffers.values())))
            else:
                sends += [(share.owner, x) for x in message]
        self.team.wire.exchange(sends, receives).wait()
        for share, member, messages in received:
            total = _state(member, "server_estimate", torch.zeros_like(share.m))
            for message in messages:
                total.add_(self.up.decode(message, total.shape), alpha=1.0 / len(messages))

    def _average_momenta(self, shares: Sequence[Share]) -> None:
        """m <- mean_j M_j (which G estimates) on the owners of sampled parameters."""
        sends, receives, kept = [], [], []
        for share in (share for share in shares if share.measured):
            place = share.place
            if share.mine:
                parts = [share.m if rank == place.me else torch.empty_like(share.m) for rank in place.ranks]
                receives += [(rank, x) for rank, x in zip(place.ranks, parts, strict=True) if rank != place.me]
                kept.append((share, parts))
            else:
                sends.append((share.owner, share.m))
        self.team.wire.exchange(sends, receives).wait()
        for share, parts in kept:
            share.m = torch.stack(parts).mean(0)

    def _update_server(self, optimizer: Groups, batch: Batch, shares: Sequence[Share]) -> None:
        """X <- (1 - lr decay) X - lr length z(G) on servers, S = D(X - W), and W <- W + S everywhere."""
        mine = [(share, member) for share, member in zip(shares, batch.members, strict=True) if share.mine]
        given = [member.state["server_estimate"] for _, member in mine]
        found = solve([share for share, _ in mine], given, optimizer.directions)
        if mine:
            for (share, _), direction in zip(mine, found, strict=True):
                if direction.observed is not None:
                    direction.observed, direction.estimable = (share.m, direction.observed[1]), False
            served = Batch([_server(member) for _, member in mine], unstacked=True)
            apply_directions_(optimizer, served, [share for share, _ in mine], found, sole=True)
        sends, receives, shifts = [], [], []
        for share, member in zip(shares, batch.members, strict=True):
            if share.mine:
                message = self.down.encode(member.state["server_weight"] - member.p)
                others = (rank for rank in share.place.ranks if rank != share.place.me)
                sends += [(rank, x) for rank in others for x in message]
            else:
                message = self.down.empty(member.p)
                receives += [(share.owner, x) for x in message]
            shifts.append((member.p, message))
        self.team.wire.exchange(sends, receives).wait()
        for p, message in shifts:
            p.add_(self.down.decode(message, p.shape))


def _server(member: Member) -> Member:
    """The parameter as its server holds it: X instead of W."""
    x = _state(member, "server_weight", member.p.detach())
    return Member(x, member.state, member.group, member.ball, member.length, member.view)


def _state(member: Member, key: str, start: Tensor) -> Tensor:
    """An entry of the state, initialised by a copy of `start`."""
    if key not in member.state:
        member.state[key] = start.clone()
    return member.state[key]
