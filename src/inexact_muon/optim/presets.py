"""Named optimizers: the core with arguments filled in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self, Unpack

from torch import Tensor, nn

from inexact_muon.defaults import ADAMW_LR
from inexact_muon.lmo import Ball, Euclidean, Sign, Spectral
from inexact_muon.optim.core import LMOOptimizer
from inexact_muon.optim.lengths import FIXED, Length, Smooth, Steepest
from inexact_muon.optim.options import check_adamw, check_ns_steps, warn
from inexact_muon.polar import Auto, PolarExpress, PolarMethod, Polynomial, parse
from inexact_muon.schedules.published import JORDAN

if TYPE_CHECKING:
    from inexact_muon.optim.arguments import Common, MuonOptions, StageOptions
    from inexact_muon.routing.attention import Heads
    from inexact_muon.routing.routes import Recipe, Route, Rules, Splits

TORCH_STEPS, TORCH_EPS = 5, 1e-7
AUTO = Auto()


class Muon(LMOOptimizer):
    """Muon with a choice of oracle; a drop-in replacement for `torch.optim.Muon`.

    All arguments of `torch.optim.Muon` have the same meaning and default, except for the oracle: it is `polar`,
    `PolarExpress(5)` by default, unless `ns_steps` or `ns_coefficients` requests torch's Newton-Schulz iteration (with
    its Frobenius normalisation). Giving both raises. Momentum is an exponential average that starts at zero, as in
    torch.

    Args:
        adjust_lr_fn: "original" (also None): sqrt(max(1, out/in)); "match_rms_adamw": 0.2 sqrt(max(out, in));
            "spectral": sqrt(out/in), which Emerging-Optimizers and Megatron call unit_rms_norm: their "spectral" is
            sqrt(max(out, in)); "none": 1.
        eps: accepted for compatibility and ignored: the oracle is invariant to the gradient's scale.
        foreach, fused: which of torch's implementations to use; accepted for compatibility: there is one here, which
            works on many matrices at once, with the same result. Both cannot be True.
        options: as in `LMOOptimizer`: before, after, decay, fixed_norm, state_dtype, maximize, sample_every,
            sample_share, on_nonfinite, memory_limit, strategy, wire, process_group.
    """

    stages: ClassVar[StageOptions] = {}
    """What a published variant has where the caller says nothing."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        *,
        ns_coefficients: tuple[float, float, float] | None = None,
        eps: float = TORCH_EPS,
        ns_steps: int | None = None,
        adjust_lr_fn: str | None = None,
        foreach: bool | None = None,
        fused: bool | None = None,
        polar: PolarMethod | str | None = None,
        **options: Unpack[Common],
    ) -> None:
        if eps != TORCH_EPS:
            warn(f"eps={eps} has no effect: the oracle does not depend on the gradient's scale")
        if foreach and fused:
            raise RuntimeError("`fused` and `foreach` cannot be `True` together.")  # as torch's optimizers say it
        self.recipe: Recipe | None = None
        ball, scale = Spectral(polar=_oracle(polar, ns_steps, ns_coefficients)), adjust_lr_fn or "original"
        fixed: Any = {"ball": ball, "scale": scale, "momentum_init": "zero", **self.stages, **options}
        super().__init__(params, lr, momentum, weight_decay=weight_decay, nesterov=nesterov, **fixed)

    @classmethod
    def for_model(
        cls,
        model: nn.Module,
        lr: float | Tensor | None = None,
        *,
        polar: PolarMethod | str = "auto",
        adamw: Mapping[str, Any] | None = None,
        rules: Rules = (),
        split: Splits | None = None,
        heads: Heads = False,
        **options: Unpack[MuonOptions],
    ) -> Self:
        """Muon for the hidden matrices of a model and AdamW for the rest, in one optimizer; see `routing`.

        `explain(optimizer)` shows the algorithm of each parameter and why.

        Args:
            lr: learning rate of the matrices; required.
            polar: the oracle; "auto" is `polar.cheapest` for each shape and device, resolved at the first step or taken
                from a checkpoint. "auto:accurate" takes the cheapest with an error of at most 0.065, "auto:fast" a
                cheaper one that trained as well as the exact oracle in some studies.
            adamw: lr (default `defaults.ADAMW_LR`), betas, weight_decay and eps of the AdamW groups.
            rules: (glob on the name, "lmo", "adamw" or options) pairs that override routing; options are those of a
                parameter group, including "algorithm": ("*.bias", {"weight_decay": 0.1}).
            split: glob on the name -> rows of the blocks of a fused weight whose layout is not recognised.
            heads: True makes each head of attention's query, key and value a matrix of its own, as the code of the
                module divides them; "all" the output projections by columns too.
            weight_decay: applies to matrices and untied output layers; not to norms, biases, embeddings and parameters
                that `model.no_weight_decay()` names, unless a rule sets it.

        Other arguments are those of `Muon`.
        """
        from inexact_muon.routing import routes as routing

        check_adamw(adamw)
        if not isinstance(model, nn.Module):
            raise TypeError(
                f"for_model needs the model itself, got {type(model).__name__}: write Muon.for_model(model, lr), not "
                "model.parameters()"
            )
        recipe = routing.Recipe(tuple(rules), split, {"lr": ADAMW_LR, **(adamw or {})}, lr, heads)
        routes = routing.routes(model, recipe.rules, split, heads)
        if lr is None:
            raise TypeError("for_model needs a learning rate: write Muon.for_model(model, lr=0.02)")
        if not routes:
            raise ValueError("the model has no parameter that requires a gradient")
        for doubt in routing.doubts(routes):
            warn(doubt)
        asked = options.get("ns_steps") or options.get("ns_coefficients")
        named: Any = {"polar": None if polar == "auto" and asked else polar, **options}
        optimizer = cls(recipe.groups(routes), lr, **named)
        optimizer._explain_by(routes)
        optimizer.ordered, optimizer.recipe = False, recipe
        return optimizer

    def add_unfrozen(self, model: nn.Module) -> list[str]:
        """Add parameters of the model that now require a gradient; returns their names.

        They are routed like the others and added to the matching group, with its current learning rate, so that
        schedulers continue to work; a new group is made if none matches.
        """
        from inexact_muon.routing import routes as routing

        if self.recipe is None:
            raise ValueError("add_unfrozen needs an optimizer made by for_model: use add_param_group for this one")
        known = {id(p) for group in self.param_groups for p in group["params"]}
        everything = routing.routes(model, self.recipe.rules, self.recipe.split, self.recipe.heads)
        routes = [route for route in everything if id(route.parameter) not in known]
        mine = {group["name"]: group for group in self.param_groups}
        for entry in self.recipe.groups(routes):
            group = mine.get(entry["name"])
            if group is None:
                self.add_param_group(entry)
                continue
            for name, p in entry["params"]:
                self._check_parameter(p, group)
                group["params"].append(p)
                group["param_names"].append(name)
        self._explain_by(routes)
        return [route.name for route in routes]

    def _explain_by(self, routes: Sequence[Route]) -> None:
        self.why |= {route.name: route.why if route.sure else f"unsure: {route.why}" for route in routes}
        self.unsure |= {route.name for route in routes if not route.sure}
        self.roles |= {route.name: route.role for route in routes if not route.settled}

    def _options(self) -> dict[str, Any]:
        return {**super()._options(), "recipe": self.recipe}


class Scion(LMOOptimizer):
    """Scion (arXiv 2502.07529): a ball and a radius per layer, momentum from the first gradient, no Nesterov.

    Unconstrained: W <- W + lr radius d_hat. Constrained: W <- (1 - lr) W + lr radius d_hat, which keeps W in the ball
    of that radius if it starts there (with an inexact oracle, in (1 + delta) times it).

    Clipped Scion is length="clipped": the steepest-descent step lr ||m||* d_hat while ||m||* <= radius.

    Args:
        momentum: weight of the old buffer, 1 minus what Scion's own code calls momentum.
        ball, radius: for all layers, or per group: `{"params": ..., "ball": lmo.Sign(scale="rms"), "radius": 3000.0}`.

    The others are as in `LMOOptimizer`.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        momentum: float = 0.9,
        ball: Ball | str | None = None,
        radius: float = 1.0,
        constrained: bool = False,
        *,
        length: Length | str = FIXED,
        **options: Unpack[Common],
    ) -> None:
        ball = Spectral(scale="rms") if ball is None else ball
        kind: Any = {"ball": ball, "length": length, "radius": radius, "constrained": constrained}
        super().__init__(params, lr, momentum, **kind, **options)


def sign_sgd(params: Iterable[Any], lr: float | Tensor, momentum: float = 0.0) -> LMOOptimizer:
    """SignSGD, with momentum Signum: W <- W - lr sign(m)."""
    return LMOOptimizer(params, lr, momentum, ball=Sign())


def normalised_sgd(params: Iterable[Any], lr: float | Tensor, momentum: float = 0.0) -> LMOOptimizer:
    """W <- W - lr m/||m||_2, per parameter."""
    return LMOOptimizer(params, lr, momentum, ball=Euclidean())


def spectral_descent(
    params: Iterable[Any], lr: float | Tensor, momentum: float = 0.0, polar: PolarMethod | str | None = None
) -> LMOOptimizer:
    """Stochastic spectral descent: W <- W - lr ||m||_nuclear U V^T."""
    return LMOOptimizer(params, lr, momentum, ball=Spectral(polar=_oracle(polar, None, None)), length=Steepest())


def gluon(
    params: Iterable[Any],
    l0: float,
    l1: float,
    momentum: float = 0.0,
    ball: Ball | str | None = None,
    lr: float | Tensor = 1.0,
) -> LMOOptimizer:
    """Gluon (arXiv 2505.13416): layer-wise steps ||m||*/(L0 + L1 ||m||*); other constants per group by `length`."""
    return LMOOptimizer(params, lr, momentum, ball=Spectral() if ball is None else ball, length=Smooth(l0, l1))


def _oracle(
    polar: PolarMethod | str | None, steps: int | None, coefficients: tuple[float, float, float] | None
) -> PolarMethod:
    if steps is None and coefficients is None:
        if polar is None:
            return PolarExpress(5)
        if polar == "auto":  # the default of `for_model`, without reading a text
            return AUTO
        return parse(polar) if isinstance(polar, str) else polar
    if polar is not None:
        raise ValueError("give either polar= or ns_steps=/ns_coefficients=, not both: each names the oracle")
    count = check_ns_steps(TORCH_STEPS if steps is None else steps)
    return Polynomial((tuple(JORDAN if coefficients is None else coefficients),) * count)
