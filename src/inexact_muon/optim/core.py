"""The one `step()`: Algorithm 1 of the paper over any ball and any inexact oracle.

    m <- momentum m + (1 - momentum) g                  momentum = 1 - alpha; the first m is g, or 0 if asked
    d_hat <- ball(m),  or of  momentum m + (1 - momentum) g  with Nesterov
    W <- (1 - lr weight_decay) W + lr scale length d_hat                                     unconstrained
    W <- (1 - lr) W + lr radius d_hat                                         constrained (Frank-Wolfe)

Ball (direction) and length are values and live on the optimizer; a parameter group carries their text, so that a
checkpoint is plain data. A gradient that is not finite leaves its parameter and state untouched and is counted, by
masks on the device.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from inexact_muon.inexactness import Inexactness
from inexact_muon.lmo import Ball, parse
from inexact_muon.lmo._base import sides
from inexact_muon.optim.adamw import adamw_update
from inexact_muon.optim.lengths import Length
from inexact_muon.optim.lengths import parse as parse_length
from inexact_muon.optim.options import FOREIGN, OWN, check_options, tensors_of
from inexact_muon.optim.scales import SCALES
from inexact_muon.optim.telemetry import Telemetry
from inexact_muon.optim.views import View
from inexact_muon.optim.views import parse as parse_view
from inexact_muon.schedules.grammar import nearest, write


class LMOOptimizer(Optimizer):
    """Steps of fixed length along an inexact LMO of the momentum.

    Args:
        params: parameters, named parameters or groups; a group may set any argument below for itself.
        lr: step size gamma; a float or a tensor of one element.
        momentum: 1 - alpha, the weight of the old buffer.
        ball: the LMO, as a value or as text.
        length: how far to go, as a value or as text: fixed (by the radius), steepest, clipped, smooth.
        radius: multiplies the step (and is the radius of the ball when constrained).
        weight_decay: decoupled.
        nesterov: orthogonalise the gradient mixed with the new buffer instead of the buffer.
        scale: factor by shape, one of `SCALES`, computed from the matrix that the ball sees.
        constrained: keep W in the ball of this radius by convex combinations; excludes weight_decay.
        momentum_init: "first-gradient" (Algorithm 1, what the theorems need) or "zero".
        state_dtype: dtype of the momentum buffer; None takes the parameter's.
        view: how a parameter is cut into matrices: whole, flatten or split.
        algorithm: "lmo", or "adamw" for a group that shall get AdamW with `betas` and `adamw_eps`.
        maximize: ascend.
        sample_every: measure inexactness and update size at the first and every so many steps; 0 for never.
        on_nonfinite: "skip" a parameter whose gradient is not finite, or "raise" before anything has changed.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor,
        momentum: float,
        *,
        ball: Ball | str,
        length: Length | str = "fixed",
        radius: float = 1.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        scale: str = "none",
        constrained: bool = False,
        momentum_init: str = "first-gradient",
        state_dtype: torch.dtype | None = None,
        view: View | str = "whole",
        algorithm: str = "lmo",
        betas: tuple[float, float] = (0.9, 0.95),
        adamw_eps: float = 1e-8,
        maximize: bool = False,
        sample_every: int = 0,
        on_nonfinite: str = "skip",
    ) -> None:
        if on_nonfinite not in ("skip", "raise"):
            raise ValueError(f"on_nonfinite must be skip or raise, got {on_nonfinite!r}")
        self._values: dict[str, Any] = {}
        self.why: dict[str, str] = {}
        self.telemetry = Telemetry(sample_every)
        self.on_nonfinite = on_nonfinite
        self.state_dtype = state_dtype
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "ball": self._register(ball, Ball, parse),
            "length": self._register(length, Length, parse_length),
            "radius": radius,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "scale": scale,
            "constrained": constrained,
            "momentum_init": momentum_init,
            "view": self._register(view, View, parse_view),
            "algorithm": algorithm,
            "betas": betas,
            "adamw_eps": adamw_eps,
            "maximize": maximize,
        }
        super().__init__(params, defaults)

    def _register(self, given: Any, kind: type, read: Callable[[str], Any]) -> str:
        """The text of a ball or length; the value is kept, since one of somebody else's cannot be read from text."""
        value = read(given) if isinstance(given, str) else given
        if not isinstance(value, kind):
            name = kind.__name__
            raise TypeError(f"{name.lower()} must be a {name} or its text, got {type(given).__name__}")
        text = write(value, full=True)
        self._values[text] = value
        return text

    def ball(self, group: dict[str, Any]) -> Ball:
        """The ball of a parameter group."""
        ball: Ball = self._values[group["ball"]]
        return ball

    def length(self, group: dict[str, Any]) -> Length:
        """The step length of a parameter group."""
        length: Length = self._values[group["length"]]
        return length

    def view(self, group: dict[str, Any]) -> View:
        """How the parameters of a group are cut into matrices."""
        view: View = self._values[group["view"]]
        return view

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As in torch; options are checked before the group is added."""
        group = dict(param_group)
        unknown = set(group) - set(self.defaults) - {"params", "initial_lr", "initial_momentum", "param_names"}
        if unknown:
            name = sorted(unknown)[0]
            raise ValueError(f"parameter group has an unknown option {name!r}: {nearest(name, self.defaults)}")
        for key, kind, read in (("ball", Ball, parse), ("length", Length, parse_length), ("view", View, parse_view)):
            if key in group:
                group[key] = self._register(group[key], kind, read)
        if not isinstance(group["params"], Tensor):
            group["params"] = list(group["params"])
        filled = {**self.defaults, **group}
        check_options(filled)
        for p in tensors_of(group["params"]):
            self._check_parameter(p, filled)
        super().add_param_group(group)

    def _check_parameter(self, p: Tensor, group: dict[str, Any]) -> None:
        if not isinstance(p, Tensor):
            raise TypeError(f"a parameter must be a torch.Tensor, got {type(p).__name__}")
        if hasattr(p, "device_mesh"):
            raise TypeError("sharded parameters (DTensor, FSDP2) are not supported yet; a shard has another update")
        if p.is_complex():
            raise TypeError(f"complex parameters are not supported, got one of shape {tuple(p.shape)}")
        if group["algorithm"] == "adamw":
            return
        ball = self.ball(group)
        try:
            for shape in self.view(group).shapes(p.shape):
                ball.check(p.new_empty(shape, device="meta"))
        except (ValueError, IndexError) as error:
            if "does not divide" in str(error):
                raise
            raise ValueError(f"{ball.name} needs a matrix, got a parameter of shape {tuple(p.shape)}") from None

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of every parameter that has a gradient. Checks come before any change."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        ready = [(group, p) for group in self.param_groups for p in group["params"] if p.grad is not None]
        for _, p in ready:
            self._check_gradient(p)
        self.telemetry.begin()
        for group, p in ready:
            self._update(p, group)
        return loss

    def named(self) -> Iterator[tuple[str, Tensor, dict[str, Any]]]:
        """(name or running index, parameter, group) of every parameter."""
        count = 0
        for group in self.param_groups:
            names = group.get("param_names")
            for i, p in enumerate(group["params"]):
                yield (names[i] if names else str(count)), p, group
                count += 1

    def inexactness(self) -> dict[str, Inexactness]:
        """Inexactness of each parameter that an LMO moved, at the last sampled step (see `sample_every`).

        A parameter of several matrices counts as one point of the product of their balls.
        """
        found = {name: self.telemetry.samples.get(id(p)) for name, p, _ in self.named()}
        return {name: s.inexactness for name, s in found.items() if s is not None and s.inexactness is not None}

    def stats(self) -> dict[str, dict[str, float]]:
        """Per parameter: lr, steps made and skipped; at the last sampled step the update's RMS and its ratio to W."""
        table = {}
        for name, p, group in self.named():
            state, sample = self.state.get(p, {}), self.telemetry.samples.get(id(p))
            row = {"lr": float(group["lr"])}
            row |= {key: float(state[key]) for key in ("steps", "skipped") if key in state}
            if sample is not None:
                row |= {"update_rms": sample.update_rms, "update_ratio": sample.update_ratio}
                if sample.inexactness is not None:
                    row |= {k: float(getattr(sample.inexactness, k)) for k in ("delta", "gap", "overshoot", "factor")}
            table[name] = row
        return table

    def _check_gradient(self, p: Tensor) -> None:
        assert p.grad is not None
        if p.grad.layout != torch.strided:
            raise TypeError(f"sparse gradients are not supported, got {p.grad.layout} for shape {tuple(p.shape)}")
        if self.on_nonfinite == "raise" and not bool(p.grad.isfinite().all()):
            raise ValueError(
                f"the gradient of a parameter of shape {tuple(p.shape)} is not finite; nothing was changed"
            )

    def _update(self, p: Tensor, group: dict[str, Any]) -> None:
        assert p.grad is not None
        lmo = group["algorithm"] == "lmo"
        state = self._state(p, ("momentum_buffer",) if lmo else ("exp_avg", "exp_avg_sq"))
        # The buffer's dtype, which a checkpoint may have set; a cast that overflows is not finite either.
        gradient = p.grad.to(state["momentum_buffer" if lmo else "exp_avg"].dtype)
        gradient = -gradient if group["maximize"] else gradient
        finite = gradient.isfinite().all()
        gradient = torch.where(finite, gradient, 0.0)
        (self._lmo_step if lmo else self._adamw_step)(p, gradient, finite, group, state)

    def _lmo_step(
        self, p: Tensor, gradient: Tensor, finite: Tensor, group: dict[str, Any], state: dict[str, Tensor]
    ) -> None:
        buffer = state["momentum_buffer"]
        weight = 1.0 - group["momentum"]
        m = buffer.lerp(gradient, weight)
        if group["momentum_init"] == "first-gradient":
            m = torch.where(state["steps"] > 0, m, gradient)
        seen = gradient.lerp(m, group["momentum"]) if group["nesterov"] else m
        lr, ball, length, scale = group["lr"], self.ball(group), self.length(group), SCALES[group["scale"]]

        answers: list[tuple[Ball, Tensor, Tensor]] = []

        def move(matrix: Tensor) -> Tensor:
            d_hat = ball.answer(matrix)
            if self.telemetry.sampling:
                answers.append((ball, matrix, d_hat))
            dual = -(matrix * d_hat).sum(dim=(-2, -1) if matrix.ndim >= 2 else None, keepdim=True)
            return d_hat * (scale(*sides(matrix.shape)) * length(group["radius"], dual))

        kept = 1.0 - lr * (1.0 if group["constrained"] else group["weight_decay"])
        moved = (p * kept + lr * self.view(group).apply(move, seen)).to(p.dtype)
        if self.telemetry.sampling and bool(finite):
            self.telemetry.record(p, moved - p * kept, answers)
        self._commit(p, finite, moved, state, {"momentum_buffer": m})

    def _adamw_step(
        self, p: Tensor, gradient: Tensor, finite: Tensor, group: dict[str, Any], state: dict[str, Tensor]
    ) -> None:
        moved, first, second = adamw_update(
            p,
            gradient,
            state["exp_avg"],
            state["exp_avg_sq"],
            state["steps"] + 1,
            lr=group["lr"],
            betas=group["betas"],
            eps=group["adamw_eps"],
            weight_decay=group["weight_decay"],
        )
        if self.telemetry.sampling and bool(finite):
            self.telemetry.record(p, moved - p * (1.0 - group["lr"] * group["weight_decay"]), ())
        self._commit(p, finite, moved, state, {"exp_avg": first, "exp_avg_sq": second})

    @staticmethod
    def _commit(p: Tensor, finite: Tensor, moved: Tensor, state: dict[str, Tensor], new: dict[str, Tensor]) -> None:
        """Writes parameter and state where the gradient was finite, and counts; no host synchronisation."""
        p.copy_(torch.where(finite, moved, p))
        for key, value in new.items():
            state[key].copy_(torch.where(finite, value, state[key]))
        state["steps"] += finite
        state["skipped"] += ~finite

    def _state(self, p: Tensor, buffers: tuple[str, ...]) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[p]
        foreign = "momentum_buffer" in state and "steps" not in state  # from another optimizer: it has made steps
        for key in buffers:
            if key not in state:
                dtype = self.state_dtype or p.dtype
                state[key] = torch.zeros_like(p, dtype=dtype, memory_format=torch.preserve_format)
        for key, start in (("steps", int(foreign)), ("skipped", 0)):
            if key not in state:
                state[key] = torch.tensor(start, dtype=torch.int64, device=p.device)
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a checkpoint of this class, of torch.optim.Muon or of KellerJordan's Muon.

        The algorithm stays the constructor's: if the file was written under another ball, a warning names both.
        Buffers keep the dtype that was saved.
        """
        own = [{key: group[key] for key in OWN} for group in self.param_groups]
        super().load_state_dict(state_dict)
        for group, mine in zip(self.param_groups, own, strict=True):
            for key in ("ball", "length", "view", "algorithm"):
                saved = group.get(key, mine[key])
                if saved != mine[key]:
                    warnings.warn(f"checkpoint was made with {saved}; keeping {mine[key]}", stacklevel=2)
                group[key] = mine[key]
            for key, value in mine.items():
                group.setdefault(key, value)
            for key in [key for key in group if key not in self.defaults and key in FOREIGN]:
                del group[key]
        order = [index for group in state_dict["param_groups"] for index in group["params"]]
        params = [p for group in self.param_groups for p in group["params"]]
        for index, p in zip(order, params, strict=True):
            for key, value in state_dict["state"].get(index, {}).items():
                if isinstance(value, Tensor):
                    self.state[p][key] = value.detach().clone().to(p.device)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_values": self._values, **self._options()}

    def _options(self) -> dict[str, Any]:
        telemetry = Telemetry(self.telemetry.every)  # samples are of parameters that a copy does not have
        return {
            "on_nonfinite": self.on_nonfinite,
            "state_dtype": self.state_dtype,
            "why": self.why,
            "telemetry": telemetry,
        }
