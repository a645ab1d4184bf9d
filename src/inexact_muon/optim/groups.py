"""Parameter groups, per-parameter state, and observation of a step.

Balls, lengths and views are values held by the optimizer; a group holds their text, so that a checkpoint is plain data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from inexact_muon._text import write
from inexact_muon.lmo import Ball, Spectral, parse
from inexact_muon.lmo._base import sides
from inexact_muon.optim.adamw import buffer_dtype
from inexact_muon.optim.decay import PLAIN_STAGES, check_stages, is_independent
from inexact_muon.optim.lengths import Length
from inexact_muon.optim.lengths import parse as parse_length
from inexact_muon.optim.observation import Observed
from inexact_muon.optim.options import (
    GROUP_ONLY,
    check_names,
    check_on_nonfinite,
    check_options,
    check_parameter,
    check_parameters,
    check_state_dtype,
    default_view,
    named_algorithm,
    named_betas,
    tensors_of,
    unique_name,
)
from inexact_muon.optim.rates import Rates
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
        self._values: dict[str, Any] = {"before none": (), "after none": ()}
        self.why: dict[str, str] = {}
        self.unsure: set[str] = set()
        self.roles: dict[str, str] = {}
        self.ordered = True
        self.telemetry = telemetry
        self.observers: list[Observer] = []
        self.observed = frozenset()
        self._names: dict[int, str] = {}
        self.rates = Rates()
        self.memory_limit, self.on_nonfinite = memory_limit, check_on_nonfinite(on_nonfinite)
        self.state_dtype = check_state_dtype(state_dtype)
        values = {
            "ball": self._register(ball, Ball, parse),
            "length": self._register(length, Length, parse_length),
            "view": self._register(Whole(), View, parse_view),
            "before": self._register_stages(options.pop("before", None), "before"),
            "after": self._register_stages(options.pop("after", None), "after"),
        }
        super().__init__(check_parameters(params), {**GROUP_ONLY, **options, **values, "turn": 0})

    def _register(self, choice: Any, kind: type, read: Callable[[str], Any]) -> str:
        """Text of a ball, length or view. The value is kept: a user-defined one cannot be parsed from text."""
        value = read(choice) if isinstance(choice, str) else choice
        if not isinstance(value, kind):
            name = kind.__name__
            raise TypeError(f"{name.lower()} must be a {name} or its text, got {type(choice).__name__}")
        text = write(value, full=True)
        self._values[text] = value
        return text

    def _register_stages(self, choice: Any, option: str) -> str:
        """Text of the stages of an option, "before" or "after", whose values are kept like those of balls."""
        if choice is None or choice == "none":
            return "none"
        from inexact_muon.optim import stages

        values = stages.parse(choice, stages.Before if option == "before" else stages.After)
        text = stages.text(values)
        self._values[f"{option} {text}"] = values
        return text

    def before(self, group: dict[str, Any]) -> tuple[Before, ...]:
        """The stages before the oracle of a parameter group."""
        stages = self._values.get(f"before {group['before']}")
        return self._edited_stages(group, "before") if stages is None else stages

    def after(self, group: dict[str, Any]) -> tuple[After, ...]:
        """The stages after the oracle of a parameter group."""
        stages = self._values.get(f"after {group['after']}")
        return self._edited_stages(group, "after") if stages is None else stages

    def ball(self, group: dict[str, Any]) -> Ball:
        """The ball of a parameter group."""
        return self._values.get(group["ball"]) or self._edited(group, "ball", Ball, parse)

    def length(self, group: dict[str, Any]) -> Length:
        """The step length of a parameter group."""
        return self._values.get(group["length"]) or self._edited(group, "length", Length, parse_length)

    def view(self, group: dict[str, Any]) -> View:
        """The view of a parameter group: how its parameters are cut into matrices."""
        return self._values.get(group["view"]) or self._edited(group, "view", View, parse_view)

    def _edited(self, group: dict[str, Any], key: str, kind: type, read: Callable[[str], Any]) -> Any:
        """The value of an option that was set to another value or text after the group was added."""
        group[key] = self._register(group[key], kind, read)
        return self._values[group[key]]

    def _edited_stages(self, group: dict[str, Any], option: str) -> Any:
        text = self._register_stages(group[option], option)
        check_stages({**group, option: text}, self.length(group).needs_dual, self.own_momenta)
        group[option] = text
        return self._values[f"{option} {text}"]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As in torch; options are validated before the group is added."""
        group = named_betas(named_algorithm(param_group))
        group["name"] = unique_name(group, self.param_groups)
        check_names(group, self.defaults)
        for key, kind, read in (("ball", Ball, parse), ("length", Length, parse_length), ("view", View, parse_view)):
            if key in group:
                group[key] = self._register(group[key], kind, read)
        for key in ("before", "after"):
            if key in group:
                group[key] = self._register_stages(group[key], key)
        if group.get("algorithm", self.defaults["algorithm"]) == "adamw":
            group = {**PLAIN_STAGES, **group}
        if not isinstance(group["params"], Tensor):
            group["params"] = list(group["params"])
        filled = {**self.defaults, **group}
        if is_independent(filled):
            group.setdefault("decay_lr", float(filled["lr"]))
            filled = {**filled, **group}
        check_options(filled)
        check_stages(filled, self.length(filled).needs_dual, self.own_momenta)
        if "view" not in group and filled["algorithm"] == "lmo":
            view = default_view(tensors_of(group["params"]), self.ball(filled))
            if view is not None:
                group["view"] = filled["view"] = self._register(view, View, parse_view)
        for p in tensors_of(group["params"]):
            self._check_parameter(p, filled)
        super().add_param_group(group)
        self.rates.started(filled["algorithm"], filled["lr"])

    def _check_parameter(self, p: Tensor, group: dict[str, Any]) -> None:
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
        for group in self.param_groups:
            check_options(group, read_numbers=False)
        parameters = [{id(p) for p in group["params"]} for group in self.param_groups]
        if len(set().union(*parameters)) < sum(map(len, parameters)):
            raise ValueError("a parameter is in two of param_groups: remove it from one of them")
        for i, group in enumerate(self.param_groups):
            if self._resolved.get(i) == (group["ball"], len(group["params"])):
                continue
            ball = self.ball(group)
            if group["algorithm"] == "lmo" and isinstance(ball, Spectral) and isinstance(ball.polar, Auto):
                view = self.view(group)
                seen = ((shape, p.device) for p in group["params"] for shape in view.shapes(p.shape) if 0 not in shape)
                resolved = ball.polar.resolved(shape_key(*sides(shape), device) for shape, device in seen)
                group["ball"] = self._register(replace(ball, polar=resolved), Ball, parse)
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
