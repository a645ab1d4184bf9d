"""Rules that transfer a tuned step size and momentum weight from oracle A to oracle B. No torch.

With eta the gap, nu the overshoot, c = 1 - eta + nu and delta the error of Assumption 1:

    rule            gamma_B/gamma_A                          alpha_B/alpha_A
    measured        (nu_B/nu_A)^(-1/4) (c_B/c_A)^(-3/4)      ((nu_B/c_B)/(nu_A/c_A))^(1/2)
    descent         (1-eta_A)/(1-eta_B)                      1
    paper           ((1+delta_A)/(1+delta_B))^(1/4)          ((1+delta_B)/(1+delta_A))^(1/2)
    deterministic   nu_A/nu_B                                1

`descent` is the ratio of Polyak's steps, (f - f*)/((1-eta) ||m||*): along either oracle's answer to m the linear model
of the loss reaches the same value. It is the ratio of the best steps, exactly, if the loss depends on x along m only,
such as f(x) + <m, d> + c/2 <m, d>^2, curvature of rank one along m. With curvature in all directions alike the ratio
would be ((1-eta_B)/(1-eta_A)) (nu_A/nu_B)^2, the gap the other way round (docs/theory.md, Section 15).

Each is a ratio f(A)/f(B), so that transfers compose: A to B to C equals A to C. Under every rule but the paper's, an
oracle that returns s times another's output gets lr/s and the same momentum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from inexact_muon._text import nearest


class Factors(NamedTuple):
    """gamma_B/gamma_A and alpha_B/alpha_A."""

    lr: float
    alpha: float


@dataclass(frozen=True)
class Rule:
    """One rule.

    Attributes:
        lr: formula of gamma_B/gamma_A.
        alpha: formula of alpha_B/alpha_A.
        source: the statement whose optimum it is.
        keeps: the quantity that is preserved, in words.
        scale_equivariant: an oracle that returns s d_hat gets lr/s and the same momentum.
        function: maps two records with delta, gap and overshoot to the factors.
    """

    name: str
    lr: str
    alpha: str
    source: str
    keeps: str
    scale_equivariant: bool
    function: Callable[[Any, Any], Factors]

    def __call__(self, source: Any, target: Any) -> Factors:
        """The factors from source to target."""
        return self.function(source, target)


def _share(oracle: Any) -> float:
    """c/nu = 1 + (1-eta)/nu, which does not depend on the scale of the output."""
    return float(1.0 + (1.0 - oracle.gap) / oracle.overshoot)


def measured(a: Any, b: Any) -> Factors:
    """(nu_A/nu_B) (t_A/t_B)^(3/4) and (t_A/t_B)^(1/2), t = c/nu: the table's formula with the scale cancelled."""
    ratio = _share(a) / _share(b)
    return Factors(a.overshoot / b.overshoot * ratio**0.75, ratio**0.5)


def descent(a: Any, b: Any) -> Factors:
    """(1-eta_A)/(1-eta_B) and 1: `theory.measured_polyak_step` of B over that of A."""
    return Factors((1.0 - a.gap) / (1.0 - b.gap), 1.0)


def paper(a: Any, b: Any) -> Factors:
    """((1+delta_A)/(1+delta_B))^(1/4) and ((1+delta_B)/(1+delta_A))^(1/2)."""
    ratio = (1.0 + a.delta) / (1.0 + b.delta)
    return Factors(ratio**0.25, ratio**-0.5)


def deterministic(a: Any, b: Any) -> Factors:
    """nu_A/nu_B and 1."""
    return Factors(a.overshoot / b.overshoot, 1.0)


RULES: dict[str, Rule] = {
    rule.name: rule
    for rule in (
        Rule(
            "measured",
            "(nu_B/nu_A)^(-1/4) (c_B/c_A)^(-3/4)",
            "((nu_B/c_B)/(nu_A/c_A))^(1/2)",
            "measured-stochastic-optimal",
            "the pair stays the leading-order optimum of the two-number bound under noise",
            True,
            measured,
        ),
        Rule(
            "descent",
            "(1-eta_A)/(1-eta_B)",
            "1",
            "measured-polyak-step",
            "a step lowers the loss by the same amount to first order",
            True,
            descent,
        ),
        Rule(
            "paper",
            "((1+delta_A)/(1+delta_B))^(1/4)",
            "((1+delta_B)/(1+delta_A))^(1/2)",
            "stochastic-optimal (Corollary 3)",
            "the pair stays the paper's optimum under noise",
            False,
            paper,
        ),
        Rule(
            "deterministic",
            "nu_A/nu_B",
            "1",
            "measured-deterministic-optimal",
            "the longest singular direction of a step stays as long",
            True,
            deterministic,
        ),
    )
}
"""Name -> rule."""

DEFAULT = "descent"
"""The best rule in training: docs/cotuning.md."""


def find(name: str) -> Rule:
    """Look up a rule by name."""
    if name not in RULES:
        raise ValueError(f"unknown rule {name!r}: {nearest(str(name), RULES)}")
    return RULES[name]
