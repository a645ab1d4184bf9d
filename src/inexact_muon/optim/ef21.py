"""EF21-Muon (arXiv 2510.00643): momenta go up and weights come down, as compressed changes, with error feedback.

    worker j     M_j <- momentum of its own gradients;  R_j = C(M_j - G_j);  G_j <- G_j + R_j;  sends R_j
    server       G <- G + mean_j R_j;  X <- (1 - lr decay) X - lr length z(G);  S = D(X - W);  sends S
    everyone     W <- W + S

Every rank is a worker, and the owner of a parameter is its server. State of a worker is G_j ("worker_estimate"), of a
server G ("server_estimate") and X ("server_weight"); W is the parameter, the same on every rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn

from inexact_muon._text import read
from inexact_muon.defaults import ADAMW_LR
from inexact_muon.optim.algorithm import remember_
from inexact_muon.optim.batches import Batch, Member
from inexact_muon.optim.core import LMOOptimizer
from inexact_muon.optim.presets import TORCH_EPS, Muon
from inexact_muon.optim.shared import Shared, walk
from inexact_muon.optim.telemetry import SHARE
from inexact_muon.parallel.compressors import COMPRESSORS, Compressor, LowRank
from inexact_muon.parallel.shares import Share, solve
from inexact_muon.parallel.team import Team
from inexact_muon.parallel.wire import has_messages
from inexact_muon.polar import PolarMethod
from inexact_muon.routing.groups import Recipe
from inexact_muon.routing.routes import Rules, Splits
from inexact_muon.strategies import OwnerRank


class EF21Muon(Muon):
    """Muon whose ranks send compressed changes of momenta and weights.

    Each rank works on its own part of the batch, and nothing else may average gradients: no DistributedDataParallel,
    or its `no_sync`. Gradients of AdamW's parameters are averaged in the step. Every rank holds every parameter whole.
    Before a checkpoint call `synchronise` on all ranks.

    Args:
        up: compressor of momenta, as a value or as text: identity, top-k:0.05, low-rank:8, natural.
        down: compressor of weights; None is the same as up.
        process_group: the ranks; all by default.

    The others are those of `Muon`; there is no strategy.
    """

    own_momenta = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        *,
        up: Compressor | str = "low-rank:8",
        down: Compressor | str | None = None,
        ns_coefficients: tuple[float, float, float] | None = None,
        eps: float = TORCH_EPS,
        ns_steps: int | None = None,
        adjust_lr_fn: str | None = None,
        polar: PolarMethod | str | None = None,
        state_dtype: torch.dtype | None = None,
        maximize: bool = False,
        sample_every: int = 0,
        sample_share: float = SHARE,
        on_nonfinite: str = "skip",
        memory_limit: int | None = None,
        process_group: Any = None,
    ) -> None:
        self.up = _compressor(up)
        self.down = self.up if down is None else _compressor(down)
        super().__init__(
            params,
            lr,
            weight_decay,
            momentum,
            nesterov,
            ns_coefficients=ns_coefficients,
            eps=eps,
            ns_steps=ns_steps,
            adjust_lr_fn=adjust_lr_fn,
            polar=polar,
            state_dtype=state_dtype,
            maximize=maximize,
            sample_every=sample_every,
            sample_share=sample_share,
            on_nonfinite=on_nonfinite,
            memory_limit=memory_limit,
            process_group=process_group,
        )

    @classmethod
    def for_model(  # type: ignore[override]  # there is no strategy to choose
        cls,
        model: nn.Module,
        lr: float | Tensor | None = None,
        *,
        up: Compressor | str = "low-rank:8",
        down: Compressor | str | None = None,
        polar: PolarMethod | str = "auto",
        adamw: Mapping[str, Any] | None = None,
        rules: Rules = (),
        split: Splits | None = None,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] | None = None,
        eps: float = TORCH_EPS,
        ns_steps: int | None = None,
        adjust_lr_fn: str | None = None,
        state_dtype: torch.dtype | None = None,
        maximize: bool = False,
        sample_every: int = 0,
        sample_share: float = SHARE,
        on_nonfinite: str = "skip",
        memory_limit: int | None = None,
        process_group: Any = None,
    ) -> Self:
        """As `Muon.for_model`, with the compressors and without a strategy."""
        counted = ns_steps is not None or ns_coefficients is not None
        return cls._routed(
            model,
            lr,
            Recipe(tuple(rules), split, {"lr": ADAMW_LR, **(adamw or {})}),
            up=up,
            down=down,
            polar=None if counted and polar == "auto" else polar,
            weight_decay=weight_decay,
            momentum=momentum,
            nesterov=nesterov,
            ns_coefficients=ns_coefficients,
            eps=eps,
            ns_steps=ns_steps,
            adjust_lr_fn=adjust_lr_fn,
            state_dtype=state_dtype,
            maximize=maximize,
            sample_every=sample_every,
            sample_share=sample_share,
            on_nonfinite=on_nonfinite,
            memory_limit=memory_limit,
            process_group=process_group,
        )

    def shared(self) -> Shared:
        if self._shared is None:
            self._shared = self._join()
        return self._shared

    def _join(self) -> Shared:
        return Exchange(Team(OwnerRank(), self._ranks[1]), up=self.up, down=self.down)

    def _check_parameter(self, p: Tensor, group: dict[str, Any]) -> None:
        if hasattr(p, "device_mesh"):
            raise ValueError(
                f"EF21Muon needs a whole copy of each parameter on every rank, got a DTensor of shape "
                f"{tuple(p.shape)}: use Muon with a strategy"
            )
        super()._check_parameter(p, group)

    def synchronise(self) -> None:
        """Makes the state the same on every rank, before a checkpoint; called on all ranks.

        Each rank has its own momentum, and a server what nobody else has. The mean of the momenta goes on, and G_j is G
        everywhere: the mean of the G_j is G before and after, so that error feedback goes on as it was.
        """
        wire, locate = self.team.wire, self.team.place
        for _, p, group in self.named():
            state, place = self.state[p], locate(p)
            server = state.pop("server", None)
            if group["algorithm"] != "lmo" or server is None:
                continue
            buffer = state["momentum_buffer"]
            buffer.copy_(wire.reduce(buffer.clone(), place.groups) / len(place.ranks))
            for key in ("server_estimate", "server_weight"):
                kept = state.get(key)
                value = kept if server == place.me and kept is not None else torch.zeros_like(state["worker_estimate"])
                state[key] = wire.reduce(value.clone(), place.groups)
            state["worker_estimate"].copy_(state["server_estimate"])

    def state_dict(self) -> dict[str, Any]:
        """As in torch; `synchronise` comes first where ranks hold different state."""
        if any("server" in state for state in self.state.values()):
            raise RuntimeError(
                "ranks of EF21Muon hold different state: call optimizer.synchronise() on all of them before "
                "state_dict()"
            )
        return super().state_dict()

    def _options(self) -> dict[str, Any]:
        return {**super()._options(), "up": self.up, "down": self.down}


@dataclass
class Exchange(Shared):
    """Both messages of a step, around the oracle."""

    up: Compressor = field(default_factory=LowRank)
    down: Compressor = field(default_factory=LowRank)

    def __post_init__(self) -> None:
        if dist.is_available() and dist.is_initialized() and not has_messages(self.team.process_group):
            backend = dist.get_backend(self.team.process_group)
            raise ValueError(f"EF21Muon needs messages from rank to rank, which backend {backend} does not have")

    def holds(self, p: Tensor) -> bool:
        return True

    def step(self, optimizer: LMOOptimizer) -> None:
        moving = [(group, p) for group, p in self.entries if group["algorithm"] == "lmo"]
        for chunk in self._chunks(optimizer, moving):
            for batch, seen, shares in chunk:
                for share, member in zip(shares, batch.members, strict=True):
                    if share.place.shared:  # whatever moves next time: X and G stay where they are
                        share.owner = member.state.setdefault("server", share.owner)
                self._estimate(batch, shares)
                self._true(shares)
                self._serve(optimizer, batch, shares)
                remember_(batch, seen)
        resting = [(group, p) for group, p in self.entries if group["algorithm"] == "adamw"]
        own = [p.grad for _, p in resting]
        try:
            for _, p in resting:
                place = self.team.place(p)
                p.grad = self.team.wire.reduce(p.grad.clone(), place.groups) / len(place.ranks)  # type: ignore[union-attr]
            self.adamw(optimizer, resting)
        finally:
            for (_, p), gradient in zip(resting, own, strict=True):
                p.grad = gradient

    def _estimate(self, batch: Batch, shares: Sequence[Share]) -> None:
        """R_j = C(M_j - G_j), G_j <- G_j + R_j, and G <- G + mean_j R_j on the server."""
        heard, sends, receives = [], [], []
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
                heard.append((share, member, list(buffers.values())))
            else:
                sends += [(share.owner, x) for x in message]
        self.team.wire.exchange(sends, receives).wait()
        for share, member, messages in heard:
            total = _state(member, "server_estimate", torch.zeros_like(share.m))
            for message in messages:
                total.add_(self.up.decode(message, total.shape), alpha=1.0 / len(messages))

    def _true(self, shares: Sequence[Share]) -> None:
        """m <- mean_j M_j at the owners of what is to be measured: what G stands for."""
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

    def _serve(self, optimizer: LMOOptimizer, batch: Batch, shares: Sequence[Share]) -> None:
        """X <- (1 - lr decay) X - lr length z(G) on servers, S = D(X - W), and W <- W + S."""
        mine = [(share, member) for share, member in zip(shares, batch.members, strict=True) if share.mine]
        given = [member.state["server_estimate"] for _, member in mine]
        found = solve([share for share, _ in mine], given, optimizer.directions)
        if mine:
            for (share, _), direction in zip(mine, found, strict=True):
                if direction.seen is not None:
                    direction.seen, direction.estimable = (share.m, direction.seen[1]), False
            served = Batch([_server(member) for _, member in mine], loose=True)
            walk(optimizer, served, [share for share, _ in mine], found, once=True)
        sends, receives, shifts = [], [], []
        for share, member in zip(shares, batch.members, strict=True):
            if share.mine:
                message = self.down.encode(member.state["server_weight"] - member.p)
                others = (rank for rank in share.place.ranks if rank != share.place.me)
                sends += [(rank, x) for rank in others if share.place.shared for x in message]
            else:
                message = self.down.empty(member.p)
                receives += [(share.owner, x) for x in message]
            shifts.append((member.p, message))
        self.team.wire.exchange(sends, receives).wait()
        for p, message in shifts:
            p.add_(self.down.decode(message, p.shape))


def _server(member: Member) -> Member:
    """The same parameter as its server holds it: X instead of W."""
    x = _state(member, "server_weight", member.p.detach())
    return Member(x, member.state, member.group, member.ball, member.length, member.view)


def _state(member: Member, key: str, start: Tensor) -> Tensor:
    if key not in member.state:
        member.state[key] = start.clone()
    value: Tensor = member.state[key]
    return value


def _compressor(given: Compressor | str) -> Compressor:
    found = read(given, COMPRESSORS) if isinstance(given, str) else given
    if not isinstance(found, Compressor):
        raise TypeError(f"a compressor or its text is wanted, such as low-rank:8, got {type(given).__name__}")
    return found
