"""Rules that transfer a tuned step size and momentum weight from oracle A to oracle B. No torch.

eta is the gap, nu the overshoot, c = 1 - eta + nu and delta the error of Assumption 1.

`descent` is the ratio of Polyak's steps, (f - f*)/((1-eta) ||m||*): along either oracle's answer to m the linear model
of the loss reaches the same value. It is the ratio of the best steps, exactly, if the loss depends on x along m only,
such as f(x) + <m, d> + c/2 <m, d>^2, curvature of rank one along m. With curvature in all directions alike the ratio
would be ((1-eta_B)/(1-eta_A)) (nu_A/nu_B)^2, the gap the other way round (docs/theory.md, Section 15).

Each is a ratio f(B)/f(A), so that transfers compose: A to B to C equals A to C. Under every rule but the paper's, an
oracle that returns s times another's output gets lr/s and the same momentum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from inexact_muon._text import nearest
from inexact_muon_lab.theory.deterministic import deterministic_optimal
from inexact_muon_lab.theory.stochastic import stochastic_optimal


class Factors(NamedTuple):
    """gamma_B/gamma_A and alpha_B/alpha_A."""

    lr: float
    alpha: float


@dataclass(frozen=True)
class Rule:
    """One rule: the formulas of gamma_B/gamma_A and alpha_B/alpha_A, the statement whose optimum it is, the quantity it
    preserves, in words, and gamma and alpha for one oracle, each up to a constant."""

    name: str
    lr: str
    alpha: str
    source: str
    keeps: str
    optimum: Callable[[Any], tuple[float, float]]

    def __call__(self, source: Any, target: Any) -> Factors:
        """The factors from source to target, two records with delta, gap and overshoot."""
        (gamma_a, alpha_a), (gamma_b, alpha_b) = self.optimum(source), self.optimum(target)
        return Factors(gamma_b / gamma_a, alpha_b / alpha_a)


def _measured(i: Any) -> tuple[float, float]:
    """1/(nu t^(3/4)) and t^(-1/2): with t = c/nu = 1 + (1-eta)/nu the scale of outputs cancels."""
    t = 1.0 + (1.0 - i.gap) / i.overshoot
    return 1.0 / (i.overshoot * t**0.75), t**-0.5


measured = Rule(
    "measured",
    lr="(nu_B/nu_A)^(-1/4) (c_B/c_A)^(-3/4)",
    alpha="((nu_B/c_B)/(nu_A/c_A))^(1/2)",
    source="measured-stochastic-optimal",
    keeps="the pair stays the leading-order optimum of the two-number bound under noise",
    optimum=_measured,
)
descent = Rule(
    "descent",
    lr="(1-eta_A)/(1-eta_B)",
    alpha="1",
    source="measured-polyak-step",
    keeps="a step lowers the loss by the same amount to first order",
    optimum=lambda i: (1.0 / (1.0 - i.gap), 1.0),
)
paper = Rule(
    "paper",
    lr="((1+delta_A)/(1+delta_B))^(1/4)",
    alpha="((1+delta_B)/(1+delta_A))^(1/2)",
    source="stochastic-optimal (Corollary 3)",
    keeps="the pair stays the paper's optimum under noise",
    optimum=lambda i: ((1.0 + i.delta) ** -0.25, (1.0 + i.delta) ** 0.5),
)
deterministic = Rule(
    "deterministic",
    lr="nu_A/nu_B",
    alpha="1",
    source="measured-deterministic-optimal",  # in one number: Corollary 2
    keeps="the longest singular direction of a step stays as long",
    optimum=lambda i: (1.0 / i.overshoot, 1.0),
)
RULES = {rule.name: rule for rule in (measured, descent, paper, deterministic)}
"""Name -> rule."""

DEFAULT = "descent"
"""The best rule in training: docs/cotuning.md."""


def find(name: str) -> Rule:
    """Look up a rule by name."""
    if name not in RULES:
        raise ValueError(f"unknown rule {name!r}: {nearest(str(name), RULES)}")
    return RULES[name]


def constant_optimal(D0: float, L: float, K: float, delta: float, rho_sigma: float = 0.0) -> dict[str, float]:
    """lr and momentum of Corollary 2 (no noise) or Corollary 3, as keyword arguments of an optimizer.

    No noise: gamma* = sqrt(2 D0/(K L))/(1+delta), momentum 0. Noise: alpha* = sqrt(2 D0 L (1+delta)/K)/(rho sigma),
    momentum = 1 - alpha*.

    >>> constant_optimal(D0=2.0, L=1.0, K=100, delta=0.0)
    {'lr': 0.2, 'momentum': 0.0}
    """
    if rho_sigma == 0.0:
        return {"lr": deterministic_optimal(D0, L, K, delta).gamma, "momentum": 0.0}
    best = stochastic_optimal(D0, L, K, rho_sigma, delta)
    return {"lr": best.gamma, "momentum": 1.0 - best.alpha}
