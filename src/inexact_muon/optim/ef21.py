"""EF21-Muon as an optimizer; the equations are in `exchange`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self, Unpack

import torch
from torch import Tensor, nn

from inexact_muon._text import read
from inexact_muon.optim.arguments import EF21Common, EF21Options
from inexact_muon.optim.batches import Member
from inexact_muon.optim.exchange import Exchange
from inexact_muon.optim.group import Group
from inexact_muon.optim.presets import Muon
from inexact_muon.optim.ranks import Ranks
from inexact_muon.optim.stepplan import StepPlan
from inexact_muon.optim.telemetry import Entry
from inexact_muon.parallel.compressors import COMPRESSORS, Compressor
from inexact_muon.parallel.team import Team
from inexact_muon.strategies import OwnerRank

if TYPE_CHECKING:
    from inexact_muon.routing.attention import Heads
    from inexact_muon.routing.routes import Rules, Splits


class EF21Muon(Muon):
    """Muon whose ranks exchange compressed changes of momenta and weights.

    Each rank processes its own part of the batch, and gradients must not be averaged elsewhere: use no
    DistributedDataParallel, or its `no_sync`. Gradients of AdamW parameters are averaged in the step. Every rank holds
    all parameters. Call `synchronise` on all ranks before saving a checkpoint.

    Args:
        up: compressor of momenta, as a value or as text: identity, top-k:0.05, low-rank:8, natural.
        down: compressor of weights; default: the same as up.
        process_group: the ranks; default: all.

    Other arguments are those of `Muon`, without `strategy`.
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
        **options: Unpack[EF21Common],
    ) -> None:
        self.up = _compressor(up)
        self.down = self.up if down is None else _compressor(down)
        if "strategy" in options or "wire" in options:
            raise TypeError("EF21Muon has compressors instead of strategy and wire: give up= and down=")
        super().__init__(params, lr, weight_decay, momentum, nesterov, **options)

    @classmethod
    def for_model(  # type: ignore[override]  # there is no strategy to choose
        cls,
        model: nn.Module,
        lr: float | Tensor | None = None,
        *,
        up: Compressor | str = "low-rank:8",
        down: Compressor | str | None = None,
        adamw: Mapping[str, Any] | None = None,
        rules: Rules = (),
        split: Splits | None = None,
        heads: Heads = False,
        **options: Unpack[EF21Options],
    ) -> Self:
        """`Muon.for_model` with compressors and without a strategy."""
        named: Any = {"adamw": adamw, "rules": rules, "split": split, "heads": heads, "up": up, "down": down, **options}
        return super().for_model(model, lr, **named)

    def _join(self) -> Ranks:
        return Exchange(Team(OwnerRank(), self._sharing[1], all=True), up=self.up, down=self.down)

    def _planned(self, ready: list[Entry], ranks: Ranks | None) -> tuple[StepPlan, list[Member]]:
        """Gradients of AdamW's parameters are averaged."""
        plan, members = super()._planned(ready, ranks)
        for m in (m for m in plan.members if m.group["algorithm"] == "adamw" and m.gradient is not None):
            total = self.team.wire.reduce(m.gradient.clone(), m.place.groups)  # type: ignore[union-attr]
            m.gradient = total / len(m.place.ranks)
        return plan, members

    def _check_parameter(self, p: Tensor, group: Group) -> None:
        if hasattr(p, "device_mesh"):
            raise ValueError(
                f"EF21Muon needs a whole copy of each parameter on every rank, got a DTensor of shape "
                f"{tuple(p.shape)}: use Muon with a strategy"
            )
        super()._check_parameter(p, group)

    def synchronise(self) -> None:
        """Make the state equal on all ranks, for a checkpoint; call it on all of them.

        Ranks have different momenta, and only servers have server state. Afterwards every rank has the mean momentum
        and G_j = G. The mean of the G_j is G before and after, so error feedback continues unchanged.
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
                mine = state.get(key) if server == place.me else None
                value = torch.zeros_like(state["worker_estimate"]) if mine is None else mine
                state[key] = wire.reduce(value.clone(), place.groups)
            state["worker_estimate"].copy_(state["server_estimate"])

    def state_dict(self) -> dict[str, Any]:
        """As in torch; raises if `synchronise` is needed first."""
        if any("server" in state for state in self.state.values()):
            raise RuntimeError(
                "ranks of EF21Muon hold different state: call optimizer.synchronise() on all of them before "
                "state_dict()"
            )
        return super().state_dict()

    def _options(self) -> dict[str, Any]:
        return {**super()._options(), "up": self.up, "down": self.down}


def _compressor(choice: Compressor | str) -> Compressor:
    compressor = read(choice, COMPRESSORS) if isinstance(choice, str) else choice
    if not isinstance(compressor, Compressor):
        raise TypeError(f"expected a compressor or its text, such as low-rank:8, got {type(choice).__name__}")
    return compressor
