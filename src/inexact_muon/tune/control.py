"""Oracle, lr and momentum of each layer while it trains: a controller on an optimizer's step hooks. Experimental.

Every so many steps the singular values of what each oracle is about to see are taken. From them a policy (`Adaptive`,
`Budget`) picks an oracle for each layer, and with a `reference` lr and alpha = 1 - momentum are multiplied, layer by
layer, by the factors that carry them from the reference oracle to the one in use. What is chosen is in the parameter
groups during `step()` only.

In the studies neither policies nor carried values paid: docs/cotuning.md, docs/figures/precision-study.md.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from math import inf, prod
from typing import Any, Protocol

import torch
from torch import Tensor

from inexact_muon.lmo import Ball, Spectral
from inexact_muon.lmo._base import sides
from inexact_muon.polar import PolarMethod, parse
from inexact_muon.schedules.grammar import write
from inexact_muon.tune.judging import Layer, choices, look
from inexact_muon.tune.policy import Policy, parse_policy
from inexact_muon.tune.rules import DEFAULT, Factors, find
from inexact_muon.tune.settings import Setting, from_rows, to_rows
from inexact_muon.views import View

EVERY = 50
"""Steps between two looks if neither a policy nor the caller says so."""

SMOOTH = 0.5
"""Weight of a new factor in the geometric mean with the old one, after the first."""

Group = dict[str, Any]


class Controlled(Protocol):
    """What is asked of an optimizer: those of `inexact_muon.optim` have it."""

    param_groups: list[Group]

    @property
    def own_momenta(self) -> bool:
        """Whether each rank has a momentum of its own."""

    def named(self) -> Iterator[tuple[str, Tensor, Group]]:
        """(name, parameter, group) of every parameter."""

    def ball(self, group: Group) -> Ball:
        """The ball of a group."""

    def view(self, group: Group) -> View:
        """How its parameters are cut into matrices."""

    def text_of(self, ball: Ball) -> str:
        """What to write into a group so that it has this ball."""

    def seen(self) -> Iterator[tuple[str, Group, Tensor]]:
        """(name, group, what the ball is about to see) of every parameter that the coming step moves by its ball."""

    def register_step_pre_hook(self, hook: Callable[..., Any]) -> Any:
        """As in torch."""

    def register_step_post_hook(self, hook: Callable[..., Any]) -> Any:
        """As in torch."""

    def register_state_dict_pre_hook(self, hook: Callable[..., Any]) -> Any:
        """As in torch."""


class Control:
    """Chooses oracles, or carries lr and momentum, layer by layer and step by step. Experimental: see this module.

    Attach it before schedulers: every parameter with a spectral ball gets a parameter group of its own. During a step
    groups hold what was chosen; afterwards they hold what they held before, so that schedulers, checkpoints and
    `explain` see your values. (If a step raises, the next step, checkpoint or `remove()` restores them.) The product
    lr * weight_decay is not changed.

    Args:
        optimizer: of this library; not one where each rank has a momentum of its own (EF21).
        policy: chooses an oracle for each layer, as a value or as text: `Adaptive(target=1.05)`, "budget:5e6".
        reference: the oracle at which lr and momentum were tuned, as a value or as text.
        rule: by which they are carried from the reference to the oracle in use.
        every: steps between two looks at singular values; None: the policy's, or 50.

    Attributes:
        settings: what each layer gets now, by the name of its parameter.
        history: (step, parameter, oracle) of every change of a choice.
        looked: whether the last step looked at singular values.

    Example:
        >>> control = Control(optimizer, policy=Adaptive(target=1.05))    # train; then, beside the optimizer's
        >>> checkpoint["control"] = control.state_dict()
    """

    def __init__(
        self,
        optimizer: Controlled,
        policy: Policy | str | None = None,
        reference: PolarMethod | str | None = None,
        rule: str = DEFAULT,
        every: int | None = None,
    ) -> None:
        self.policy = parse_policy(policy) if isinstance(policy, str) else policy
        self.reference = parse(reference) if isinstance(reference, str) else reference
        self.rule = find(rule)
        self.every = (self.policy.every if isinstance(self.policy, Policy) else EVERY) if every is None else every
        self._check(optimizer)
        self.optimizer = optimizer
        self.settings: dict[str, Setting] = {}
        self.history: list[tuple[int, str, str]] = []
        self.looked = False
        self._due = True
        self._saved: list[tuple[Group, str, Any]] = []
        self._texts: dict[tuple[str, PolarMethod], str] = {}
        self._separate()
        self._handles = (
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._restore),
            optimizer.register_state_dict_pre_hook(self._restore),
        )

    def _check(self, optimizer: Any) -> None:
        if not hasattr(optimizer, "seen"):
            raise TypeError(f"Control needs an optimizer of this library, got {type(optimizer).__name__}")
        if self.policy is None and self.reference is None:
            raise ValueError("Control needs a policy, a reference oracle, or both")
        if self.policy is not None and not isinstance(self.policy, Policy):
            raise TypeError(f"policy must be Adaptive, Budget or their text, got {type(self.policy).__name__}")
        if self.reference is not None and not isinstance(self.reference, PolarMethod):
            raise TypeError(f"reference must be a polar method, such as polar.PolarExpress(5), got {self.reference!r}")
        if isinstance(self.every, bool) or not isinstance(self.every, int) or self.every < 1:
            raise ValueError(f"every must be an integer of at least 1, got {self.every!r}")
        if optimizer.own_momenta:
            raise ValueError("Control and EF21 do not go together: each rank sees its own momentum")
        if hasattr(optimizer.step, "_wrapped_by_lr_sched"):  # torch's mark
            raise ValueError("the optimizer has a scheduler, which counts its groups: attach Control before it")
        hooks = optimizer._optimizer_step_pre_hooks.values()
        if any(isinstance(getattr(hook, "__self__", None), Control) for hook in hooks):
            raise ValueError("the optimizer has a Control already: call its remove() first")

    def remove(self) -> None:
        """Chooses nothing any more; parameters keep groups of their own."""
        for handle in self._handles:
            handle.remove()
        self._restore()

    def ball(self, group: Group) -> Ball:
        """The ball of a group in a step: its own, with the oracle that was chosen."""
        ball = self.optimizer.ball(group)
        setting = next((self.settings.get(name) for name, own in self._layers() if own is group), None)
        if self.policy is None or setting is None or not isinstance(ball, Spectral):
            return ball
        return replace(ball, polar=setting.oracle)

    def state_dict(self) -> dict[str, Any]:
        """Plain data, by parameter: the text of the oracle, and the factors on lr and alpha."""
        return {**self._carrying(), "due": self._due, "layers": to_rows(self.settings)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Goes on from `state_dict()` of another controller.

        Layers whose oracle is not among the candidates any more (without a policy: is not the layer's own), and factors
        of another reference or rule, are decided anew at the next step, with a warning.
        """
        rows, groups = from_rows(state_dict), dict(self._layers())
        same = self.reference is not None and self._carrying().items() <= state_dict.items()
        settings, anew = dict[str, Setting](), []
        for name, (text, factors) in rows.items():
            known = self._possible(groups[name]) if name in groups else []
            oracle = next((method for method in known if write(method, full=True) == text), None)
            if oracle is not None:
                settings[name] = Setting(oracle, factors if same else None)
            if oracle is None or (self.reference is not None and settings[name].factors is None):
                anew.append(f"{name} ({text})")
        if anew:
            told = ", ".join(anew[:3]) + (f" and {len(anew) - 3} more" if len(anew) > 3 else "")
            warnings.warn(f"the controller's state does not fit and is decided anew for {told}", stacklevel=2)
        self.settings, self._due = settings, bool(state_dict["due"]) or bool(anew)

    def _carrying(self) -> dict[str, str | None]:
        """What factors depend on."""
        reference = None if self.reference is None else write(self.reference, full=True)
        return {"reference": reference, "rule": self.rule.name}

    def _possible(self, group: Group) -> list[PolarMethod]:
        """The oracles that a layer may have."""
        return [self._own(group)] if self.policy is None else list(self.policy.candidates)

    def _own(self, group: Group) -> PolarMethod:
        """The oracle that a group has by itself, at its largest matrix."""
        ball, p = self.optimizer.ball(group), group["params"][0]
        assert isinstance(ball, Spectral)
        return ball.polar.at(*sides(max(self.optimizer.view(group).shapes(p.shape), key=prod)), p.device)

    def _layers(self) -> Iterator[tuple[str, Group]]:
        """(name of its first parameter, group) of every group with a spectral ball."""
        last: Group | None = None
        for name, _, group in self.optimizer.named():
            spectral = group["algorithm"] == "lmo" and isinstance(self.optimizer.ball(group), Spectral)
            if spectral and group is not last:
                yield name, group
            last = group

    def _separate(self) -> None:
        """Gives every parameter with a spectral ball a group of its own, in the same order; names stay unique.

        The first one keeps its group's name, by which parameters that are unfrozen later find it.
        """
        optimizer, made = self.optimizer, list[Group]()
        spectral = {id(group) for _, group in self._layers()}
        taken = {group["name"] for group in optimizer.param_groups}
        names = {id(p): name for name, p, _ in optimizer.named()}
        for group in optimizer.param_groups:
            if id(group) not in spectral or len(group["params"]) == 1:
                made.append(group)
                continue
            for i, p in enumerate(group["params"]):
                name = names[id(p)]
                own = {**group, "params": [p], **({"param_names": [name]} if "param_names" in group else {})}
                made.append({**own, "name": _unused(f"{group['name']} {name}", taken)} if i else own)
        optimizer.param_groups[:] = made

    @torch.no_grad()
    def _before(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Looks if it is time, and writes what was chosen into the groups."""
        self._restore()
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is not None:  # gradients are needed now
            with torch.enable_grad():
                loss = closure()
            args, kwargs = args[:1], {**kwargs, "closure": lambda: loss}
        turn = optimizer.param_groups[0]["turn"]
        self.looked = self._due or turn % self.every == 0
        if self.looked:
            self._decide(turn)
        for name, group in self._layers():
            if name in self.settings:
                self._write(group, self.settings[name])
        return args, kwargs

    def _restore(self, *_: Any) -> None:
        for group, key, value in self._saved:
            group[key] = value
        self._saved = []

    def _write(self, group: Group, setting: Setting) -> None:
        new: Group = {}
        if self.policy is not None:
            key = (group["ball"], setting.oracle)
            if key not in self._texts:
                ball = self.optimizer.ball(group)
                assert isinstance(ball, Spectral)
                self._texts[key] = self.optimizer.text_of(replace(ball, polar=setting.oracle))
            new["ball"] = self._texts[key]
        if setting.factors is not None:
            lr, alpha = setting.factors
            new |= {"lr": group["lr"] * lr, "weight_decay": group["weight_decay"] / lr}
            new["momentum"] = group["momentum"] if alpha == 1.0 else _carried(group["momentum"], alpha)
        for name, value in new.items():
            self._saved.append((group, name, group[name]))
            group[name] = value

    def _decide(self, turn: int) -> None:
        """New choices, then new factors; nothing is changed if one cannot be had."""
        layers = self._look()
        if self.policy is None:
            groups = dict(self._layers())
            oracles = [self._own(groups[layer.name]) for layer in layers]
        else:
            methods = list(self.policy.candidates)
            present = [self.settings[la.name].oracle if la.name in self.settings else None for la in layers]
            places = [None if method is None else methods.index(method) for method in present]
            oracles = [methods[k] for k in choices(self.policy, layers, places)] if layers else []
        found = {la.name: Setting(o, self._factors(la, o)) for la, o in zip(layers, oracles, strict=True)}
        if self.policy is not None:
            for name, setting in found.items():
                if name not in self.settings or self.settings[name].oracle != setting.oracle:
                    self.history.append((turn, name, str(setting.oracle)))
        self.settings |= found
        self._due = False

    def _look(self) -> list[Layer]:
        """What the oracles are about to see, layer by layer; without those whose gradient is not finite or zero."""
        names = {id(group): name for name, group in self._layers()}
        found: dict[str, Layer] = {}
        for _, group, m in self.optimizer.seen():
            name = names.get(id(group))
            layer = None if name is None else look(name, self.optimizer.view(group).cut(m))
            if layer is not None:
                known = found[layer.name].parts if layer.name in found else ()
                found[layer.name] = replace(layer, parts=(*known, *layer.parts))
        return list(found.values())

    def _factors(self, layer: Layer, oracle: PolarMethod) -> Factors | None:
        """Of the layer's lr and alpha: the geometric mean of what the rule says now and what they were."""
        if self.reference is None:
            return None
        new = self.rule(layer.judge(self.reference), layer.judge(oracle))
        if not all(0.0 < factor < inf for factor in new):
            raise ValueError(f"rule {self.rule.name} has no factors from {self.reference} to {oracle} on {layer.name}")
        old = self.settings[layer.name].factors if layer.name in self.settings else None
        if old is None:
            return new
        return Factors(*(a ** (1.0 - SMOOTH) * b**SMOOTH for a, b in zip(old, new, strict=True)))


def _carried(momentum: Any, factor: float) -> Any:
    """1 - alpha with alpha = 1 - momentum multiplied by the factor, at most 1."""
    alpha = (1.0 - momentum) * factor
    return 1.0 - (alpha.clamp(max=1.0) if isinstance(alpha, Tensor) else min(1.0, alpha))


def _unused(name: str, taken: set[str]) -> str:
    """The name, numbered if it is taken, which it is from now on."""
    found = next(n for n in (name, *(f"{name} {i}" for i in range(2, len(taken) + 3))) if n not in taken)
    taken.add(found)
    return found
