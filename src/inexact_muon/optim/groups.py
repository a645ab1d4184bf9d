"""Parameter groups, per-parameter state, and observation of a step.

Balls, lengths and views are values held by the optimizer; a group holds their text, so that a checkpoint is plain data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from inexact_muon._text import write
from inexact_muon.lmo import Ball, Spectral, parse
from inexact_muon.lmo._base import sides
from inexact_muon.optim.adamw import buffer_dtype
from inexact_muon.optim.decay import INDEPENDENT, PLAIN_STAGES
from inexact_muon.optim.finite import is_host_readable
from inexact_muon.optim.group import Group
from inexact_muon.optim.lengths import Length
from inexact_muon.optim.lengths import parse as parse_length
from inexact_muon.optim.observation import Observed
from inexact_muon.optim.options import (
    GROUP_ONLY,
    check_names,
    check_options,
    check_parameter,
    check_settings,
    default_view,
    named_options,
    warn,
)
from inexact_muon.optim.telemetry import Entry, Observer, Telemetry
from inexact_muon.polar import Auto
from inexact_muon.polar.auto import key as shape_key
from inexact_muon.views import View, Whole
from inexact_muon.views import parse as parse_view

if TYPE_CHECKING:
    from inexact_muon.optim.ranks import Ranks
    from inexact_muon.optim.stages import After, Before
    from inexact_muon.parallel.team import Team
    from inexact_muon.strategies import Strategy
    from inexact_muon_lab.tune.advice import Advice

VALUES: dict[str, tuple[type, Callable[[str], Any]]] = {
    "ball": (Ball, parse),
    "length": (Length, parse_length),
    "view": (View, parse_view),
}
"""Option of a group -> class of its value, and what reads its text."""

FLOOR = 0.01
"""Rates below this fraction of the first ones are where a schedule ends, such as cosine annealing to one `eta_min`."""


@dataclass
class Rates:
    """Notices that the rates of LMO and AdamW groups, which started apart, have become equal. Warns once.

    `first` has the rates that groups of an algorithm started with; while they are `apart`, steps compare the rates.
    """

    first: dict[str, set[float]] = field(default_factory=lambda: {"lmo": set(), "adamw": set()})
    apart: bool = False
    warned: bool = False
    compared: list[Any] = field(default_factory=list)

    def started(self, algorithm: str, lr: Any) -> None:
        """A group with this rate was added; rates that are on an accelerator are not read."""
        if not isinstance(lr, Tensor) or is_host_readable(lr):
            self.first[algorithm].add(float(f"{float(lr):.6g}"))
        lmo, adamw = self.first.values()
        self.apart = not self.warned and bool(lmo and adamw) and lmo.isdisjoint(adamw)

    def check(self, groups: Sequence[Group]) -> None:
        """Compare the rates of both algorithms at a step, in six digits: float32 may round them.

        Groups may differ among themselves, as with a decay from layer to layer, and some of one algorithm may be apart.
        """
        self.compared = [group["lr"] for group in groups]
        now = Rates()
        for algorithm, lr in {(group["algorithm"], group["lr"]) for group in groups}:
            now.started(algorithm, lr)
        lmo, adamw = now.first.values()
        shared, ended = lmo & adamw, FLOOR * min(*self.first["lmo"], *self.first["adamw"])
        if shared not in (lmo, adamw) or max(shared, default=0.0) <= ended:
            return
        self.apart, self.warned = False, True
        rates, *first = (", ".join(f"{rate:g}" for rate in sorted(lrs)) for lrs in (shared, *self.first.values()))
        warn(
            f"{'all groups' if lmo == adamw else 'groups of both algorithms'} now have lr={rates}; those of the LMO "
            f"started at {first[0]}, those of AdamW at {first[1]}: a schedule should multiply each group's own rate "
            "(docs: Use it with ..., learning rates)"
        )


class Groups(Observed):
    """Base class of the optimizers: groups, state and telemetry; `LMOOptimizer` adds the step.

    Attributes:
        why: parameter name -> reason for its algorithm; `unsure`: names for which it is a guess.
        roles: parameter name -> role, if that decided and no rule.
        ordered: groups are in the order in which the caller gave them.
    """

    joined: Ranks | None
    _sharing: tuple[Strategy | str, Any, str]
    _resolved: dict[int, tuple[str, int]]

    def __init__(
        self,
        params: Iterable[Any],
        options: dict[str, Any],
        ball: Ball | str,
        length: Length | str,
        telemetry: Telemetry,
        *,
        state_dtype: torch.dtype | None,
        on_nonfinite: str,
        memory_limit: int | None,
    ) -> None:
        self._values: dict[tuple[str, Any], Any] = {("before", "none"): (), ("after", "none"): ()}
        self.why: dict[str, str] = {}
        self.unsure: set[str] = set()
        self.roles: dict[str, str] = {}
        self.ordered = True
        self.telemetry = telemetry
        self.observers: list[Observer] = []
        self.observed = frozenset()
        self._names: dict[int, str] = {}
        self.rates = Rates()
        check_settings(on_nonfinite, state_dtype, telemetry.every, telemetry.share)
        self.memory_limit, self.on_nonfinite, self.state_dtype = memory_limit, on_nonfinite, state_dtype
        if isinstance(params, nn.Module):
            raise TypeError(f"parameters needed, got the model {type(params).__name__}: use Muon.for_model(model, lr)")
        choices = {"ball": ball, "length": length, "view": Whole(), **{k: options.get(k) for k in ("before", "after")}}
        texts = {option: self._register(option, choice) for option, choice in choices.items()}
        super().__init__(params, {**GROUP_ONLY, **options, **texts, "turn": 0})

    def _register(self, option: str, choice: Any) -> str:
        """Text of an option in `VALUES` or of stages. The value is kept: a user-defined one cannot be parsed."""
        if option in VALUES:
            kind, read = VALUES[option]
            value = read(choice) if isinstance(choice, str) else choice
            if not isinstance(value, kind):
                raise TypeError(f"{option} must be a {kind.__name__} or its text, got {type(choice).__name__}")
            text = write(value, full=True)
        elif choice is None or choice == "none":
            return "none"
        else:
            from inexact_muon.optim import stages

            value = stages.parse(choice, stages.Before if option == "before" else stages.After)
            text = stages.text(value)
        self._values[option, text] = value
        return text

    def before(self, group: Group) -> tuple[Before, ...]:
        """The stages before the oracle of a parameter group."""
        return self._value(group, "before")

    def after(self, group: Group) -> tuple[After, ...]:
        """The stages after the oracle of a parameter group."""
        return self._value(group, "after")

    def ball(self, group: Group) -> Ball:
        """The ball of a parameter group."""
        return self._value(group, "ball")

    def length(self, group: Group) -> Length:
        """The step length of a parameter group."""
        return self._value(group, "length")

    def view(self, group: Group) -> View:
        """The view of a parameter group: how its parameters are cut into matrices."""
        return self._value(group, "view")

    def _value(self, group: Any, option: str) -> Any:
        """The value of an option, which may have been set to another value or text after the group was added."""
        value = self._values.get((option, group[option])) if isinstance(group[option], str) else None
        if value is None:
            text = self._register(option, group[option])
            if option not in VALUES:
                check_options({**group, option: text}, self.length(group).needs_dual, self.own_momenta)
            group[option], value = text, self._values[option, text]
        return value

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As in torch; options are validated before the group is added."""
        group = named_options(param_group, self.param_groups)
        check_names(group, self.defaults)
        group |= {key: self._register(key, group[key]) for key in (*VALUES, "before", "after") if key in group}
        if group.get("algorithm", self.defaults["algorithm"]) == "adamw":
            group = {**PLAIN_STAGES, **group}
        if not isinstance(group["params"], Tensor):
            group["params"] = list(group["params"])
        filled: Any = {**self.defaults, **group}
        if filled["decay"] in INDEPENDENT:
            group.setdefault("decay_lr", float(filled["lr"]))
            filled = {**filled, **group}
        check_options(filled, self.length(filled).needs_dual, self.own_momenta)
        entries = [group["params"]] if isinstance(group["params"], Tensor) else group["params"]
        params = [entry[1] if isinstance(entry, tuple) else entry for entry in entries]
        if "view" not in group and filled["algorithm"] == "lmo":
            view = default_view(params, self.ball(filled))
            if view is not None:
                group["view"] = filled["view"] = self._register("view", view)
        for p in params:
            self._check_parameter(p, filled)
        super().add_param_group(group)
        self.rates.started(filled["algorithm"], filled["lr"])

    def _check_parameter(self, p: Tensor, group: Group) -> None:
        check_parameter(p, group, self.ball(group), self.view(group))

    def dtype_of(self, p: Tensor) -> torch.dtype:
        """Dtype of the state, to which a gradient is cast."""
        buffers = (self.state.get(p, {}).get(key) for key in ("momentum_buffer", "exp_avg"))
        return next((b.dtype for b in buffers if b is not None), self.state_dtype or p.dtype)

    def state_of(self, p: Tensor, buffers: tuple[str, ...]) -> dict[str, Any]:
        """State of a parameter; missing entries are initialised to zero."""
        state: dict[str, Any] = self.state[p]
        for key in buffers:
            if key not in state:
                dtype = buffer_dtype(key, self.state_dtype or p.dtype)
                state[key] = torch.zeros_like(p, dtype=dtype, memory_format=torch.preserve_format)
        for key in ("step", "skipped"):  # float32 as the fused AdamW kernel requires
            if not isinstance(count := state.get(key, 0), Tensor):
                state[key] = torch.full((), float(count), dtype=torch.float32, device=p.device)
        return state

    def ranks(self) -> Ranks | None:
        """The other ranks, or None without a process group (`parallel` is then not imported)."""
        if self.joined is None and (self.own_momenta or dist.is_initialized()):
            self.joined = self._join()
        return self.joined

    def _join(self) -> Ranks:
        from inexact_muon.optim.ranks import Ranks
        from inexact_muon.parallel.team import Team

        return Ranks(Team(*self._sharing))

    @property
    def team(self) -> Team:
        """Strategy, ranks and communication counters."""
        self.joined = self.joined or self._join()
        return self.joined.team

    def _resolve(self) -> None:
        """Validate edited groups, and choose an oracle for each shape that `polar="auto"` has not resolved yet."""
        parameters = [id(p) for group in self.param_groups for p in group["params"]]
        if len(set(parameters)) < len(parameters):
            raise ValueError("a parameter is in two of param_groups: remove it from one of them")
        for i, group in enumerate(self.param_groups):
            check_options(group, read_numbers=False)
            if self._resolved.get(i) == (group["ball"], len(group["params"])):
                continue
            ball = self.ball(group)
            if group["algorithm"] == "lmo" and isinstance(ball, Spectral) and isinstance(ball.polar, Auto):
                view = self.view(group)
                seen = ((shape, p.device) for p in group["params"] for shape in view.shapes(p.shape) if 0 not in shape)
                resolved = ball.polar.resolved(shape_key(*sides(shape), device) for shape, device in seen)
                group["ball"] = self._register("ball", replace(ball, polar=resolved))
            self._resolved[i] = (group["ball"], len(group["params"]))

    def _selected(self) -> list[Entry]:
        """Parameters updated in this step, each with probability `keep`; seeded by `turn` and the position."""
        entries, position = [], 0
        for group in self.param_groups:
            for p in group["params"]:
                position += 1
                if group["keep"] >= 1.0 or Random(f"{group['turn']}/{position}").random() < group["keep"]:
                    entries.append((group, p))
        return entries

    def advice(self) -> Advice:
        """Which oracle to use, from the momentum as it stands: three lines; see `inexact_muon.advise`."""
        from inexact_muon_lab.tune.advice import advise

        return advise(self)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_values": self._values, **self._options()}

    def _options(self) -> dict[str, Any]:
        """Attributes of a copy: options are kept; samples, which refer to other parameters, are not."""
        names = ("on_nonfinite", "state_dtype", "memory_limit", "ordered", "why", "unsure", "roles", "rates")
        telemetry = Telemetry(self.telemetry.every, self.telemetry.share)
        fresh = {"telemetry": telemetry, "observers": [], "observed": frozenset(), "_names": {}}
        return {key: getattr(self, key) for key in names} | fresh
