"""Builds a torch optimizer from the optimizer section of a spec."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from msgspec import UnsetType
from msgspec.structs import asdict
from torch import nn

from inexact_muon import lmo, optim, polar
from inexact_muon.optim.stages import parse as parse_stages
from inexact_muon.routing.routes import Rules
from inexact_muon_lab.errors import LabError
from inexact_muon_lab.problems.matrix import Point
from inexact_muon_lab.spec.optimizers import (
    SGD,
    AdamW,
    HyperballSpec,
    MuonSpec,
    Optimizer,
    ScionSpec,
    SignSGD,
    TorchMuonSpec,
)
from inexact_muon_lab.spec.spec import RunSpec


def build(model: nn.Module, options: Optimizer) -> torch.optim.Optimizer:
    """The optimizer of a section."""
    return BUILDERS[type(options)](model, options)


def check(spec: RunSpec) -> None:
    """Raise if the text of the oracle or of stages cannot be parsed."""
    if spec.polar is not None:
        oracle(spec.polar)
    if isinstance(spec.optimizer, MuonSpec):
        stages(spec.optimizer.before, "before")
        stages(spec.optimizer.after, "after")


def oracle(text: str) -> polar.PolarMethod:
    """The polar method of a spec."""
    try:
        return polar.parse(text)
    except (ValueError, TypeError) as error:
        raise LabError(f"optimizer.polar: {error}") from None


def stages(text: str | UnsetType, option: str) -> tuple[Any, ...]:
    """The stages of a spec before or after the oracle."""
    if isinstance(text, UnsetType):
        return ()
    try:
        return parse_stages(text, optim.Before if option == "before" else optim.After)
    except (ValueError, TypeError) as error:
        raise LabError(f"optimizer.{option}: {error}") from None


def rules(model: nn.Module) -> Rules:
    """A rule for matrix problems, whose parameter is not the weight of a layer, to get the LMO."""
    return (("*", "lmo"),) if isinstance(model, Point) else ()


def muon(model: nn.Module, options: MuonSpec) -> torch.optim.Optimizer:
    """Muon for hidden matrices and AdamW for the rest."""
    independent = not isinstance(options.decay, UnsetType)
    words = ["cautious"] * (options.cautious is True) + ["independent"] * independent
    return optim.Muon.for_model(
        model,
        options.lr,
        polar=oracle(options.polar),
        adamw={"lr": options.adamw_lr, "betas": options.betas, "weight_decay": options.weight_decay},
        momentum=options.momentum,
        nesterov=options.nesterov,
        weight_decay=options.weight_decay if isinstance(options.decay, UnsetType) else options.decay,
        decay="-".join(words) or "decoupled",
        before=stages(options.before, "before"),
        after=stages(options.after, "after"),
        adjust_lr_fn=options.scale,
        rules=rules(model),
    )


def hyperball(model: nn.Module, options: HyperballSpec) -> torch.optim.Optimizer:
    """Muon without weight decay, its matrices on spheres."""
    return optim.Hyperball.for_model(
        model,
        options.lr,
        polar=oracle(options.polar),
        adamw={"lr": options.adamw_lr, "betas": options.betas, "weight_decay": 0.0},
        momentum=options.momentum,
        nesterov=options.nesterov,
        rules=rules(model),
    )


def torch_muon(model: nn.Module, options: TorchMuonSpec) -> torch.optim.Optimizer:
    """torch.optim.Muon on what `for_model` gives to Muon, if it is a matrix, and torch.optim.AdamW on the rest."""
    routes = optim.routes(model, rules(model))
    hidden = [r.parameter for r in routes if r.algorithm == "lmo" and r.parameter.ndim == 2]
    if not hidden:
        raise LabError("optimizer.name: torch-muon needs a hidden matrix, and this model has none: use muon")
    rest = [p for p in model.parameters() if not any(p is q for q in hidden)]
    muon = torch.optim.Muon(hidden, options.lr, options.weight_decay, options.momentum, options.nesterov)
    if not rest:
        return muon
    adamw = torch.optim.AdamW(rest, options.adamw_lr, options.betas, weight_decay=options.weight_decay)
    return Joined(muon, adamw)


def scion(model: nn.Module, options: ScionSpec) -> torch.optim.Optimizer:
    """Spectral balls for hidden matrices, the sign ball for the output, and sign balls of radius 1 for everything else.

    A kernel's radius is sqrt(out/in)/k^2, as in Scion's code; the ball of the flattened kernel gives sqrt(out/(in
    k^2)), and the radius the missing 1/k.
    """
    inside = lmo.Spectral(polar=oracle(options.polar), scale="rms")
    groups: list[dict[str, Any]] = []
    for route in optim.routes(model, rules(model)):
        parameter = route.parameter
        ball: lmo.Ball = lmo.Sign()
        radius = 1.0
        if route.algorithm == "lmo":
            ball = inside
            radius = options.radius / (parameter.shape[-1] if parameter.ndim == 4 else 1)
        elif parameter.ndim == 2 and route.role == "head":
            ball, radius = lmo.Sign(scale="rms"), options.head_radius
        entry = [(route.name, parameter)]
        groups.append({"params": entry, "ball": ball, "radius": radius, "view": str(route.view)})
    return optim.Scion(groups, options.lr, options.momentum, constrained=options.constrained)


class Joined(torch.optim.Optimizer):
    """One step of each part. Groups and state are those of the parts, so that schedules and checkpoints see one."""

    def __init__(self, *parts: torch.optim.Optimizer) -> None:
        self.parts = parts
        super().__init__([group for part in parts for group in part.param_groups], {})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step each part on its groups, which loading a checkpoint replaces."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        first = 0
        for part in self.parts:
            last = first + len(part.param_groups)
            part.param_groups, part.state = self.param_groups[first:last], self.state
            part.step()
            first = last
        return loss


BUILDERS: dict[type, Callable[[nn.Module, Any], torch.optim.Optimizer]] = {
    MuonSpec: muon,
    HyperballSpec: hyperball,
    TorchMuonSpec: torch_muon,
    ScionSpec: scion,
    SignSGD: lambda model, options: optim.sign_sgd(model.named_parameters(), **asdict(options)),
    SGD: lambda model, options: torch.optim.SGD(model.parameters(), **asdict(options)),
    AdamW: lambda model, options: torch.optim.AdamW(model.parameters(), **asdict(options)),
}
"""Builder of each section; the last three treat every parameter alike, and their fields are the arguments."""
