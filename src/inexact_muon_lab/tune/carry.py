"""`transfer`: a tuned step size and momentum for another oracle."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

from inexact_muon.inexactness import Inexactness
from inexact_muon.polar import PolarMethod, parse
from inexact_muon_lab.tune import rules, spectra


@dataclass(frozen=True)
class Transfer:
    """Values for the target oracle.

    Attributes:
        lr: the new step size, lr_factor times the old one.
        momentum: PyTorch's convention, 1 - alpha.
        alpha: the paper's convention, the weight of the new gradient: alpha_factor times the old one, at most 1.
        clipped: whether the rule gave an alpha above 1.
        lr_factor: gamma_B/gamma_A.
        alpha_factor: alpha_B/alpha_A before clipping.
        source: inexactness of the old oracle, with its slow-down factors.
        target: inexactness of the new oracle.
        rule: name of the rule.
        spectrum: the spectrum on which the oracles were evaluated; empty if both were measured.
        why: an explanation in one sentence.
    """

    lr: float
    momentum: float
    alpha: float
    clipped: bool
    lr_factor: float
    alpha_factor: float
    source: Inexactness
    target: Inexactness
    rule: str
    spectrum: str
    why: str


def transfer(
    lr: float, momentum: float, source: Any, target: Any, rule: str = rules.DEFAULT, spectrum: Any = None
) -> Transfer:
    """The step size and momentum for `target` that correspond to those tuned for `source`.

    Args:
        lr: tuned step size.
        momentum: tuned momentum, PyTorch's convention (1 - alpha).
        source: the oracle they were tuned with: an `Inexactness`, or a polar method (or its text) evaluated on
            `spectrum`.
        target: the new oracle, likewise.
        rule: descent, measured, paper or deterministic (`inexact_muon_lab.tune.rules`); docs/cotuning.md compares them
            in training.
        spectrum: singular values, a file of them, or a name; default "gpt-late", recorded from a small model. The
            result depends on it strongly: record your own (`inexact_muon_lab.tune.record`).

    Raises:
        ValueError: a value out of range, an unknown name, or an oracle that gives no descent.

    Example:
        >>> carried = transfer(0.05, 0.95, "polar-express:5", "polar-express:2")
        >>> 0.0 < carried.lr < 0.05, carried.rule, carried.spectrum
        (True, 'descent', 'gpt-late')
    """
    lr, momentum = _number(lr, "lr"), _number(momentum, "momentum")
    if not 0.0 < lr < inf:
        raise ValueError(f"lr must be positive and finite, got {lr}")
    if not 0.0 <= momentum < 1.0:
        raise ValueError(f"momentum must lie in [0, 1), got {momentum}: it is 1 - alpha")
    chosen = rules.find(rule)
    measured = isinstance(source, Inexactness) and isinstance(target, Inexactness)
    if measured and spectrum is not None:
        raise ValueError("spectrum applies to polar methods only: source and target are already measured, leave it out")
    name, layers = ("", []) if measured else spectra.resolve(spectra.DEFAULT if spectrum is None else spectrum)
    a, b = (_inexactness(what, oracle, layers) for what, oracle in (("source", source), ("target", target)))
    factors = chosen(a, b)
    asked_alpha = (1.0 - momentum) * factors.alpha
    alpha = min(1.0, asked_alpha)
    return Transfer(
        lr=lr * factors.lr,
        momentum=momentum if factors.alpha == 1.0 else 1.0 - alpha,
        alpha=alpha,
        clipped=asked_alpha > 1.0,
        lr_factor=factors.lr,
        alpha_factor=factors.alpha,
        source=a,
        target=b,
        rule=chosen.name,
        spectrum=name,
        why=_why(chosen, a, b, name, factors, asked_alpha),
    )


def _inexactness(what: str, oracle: Any, layers: list[spectra.Layer]) -> Inexactness:
    method = parse(oracle) if isinstance(oracle, str) else oracle
    if isinstance(method, PolarMethod):
        inexactness = spectra.judge_layers(method, layers)
    elif isinstance(method, Inexactness):
        delta, gap, overshoot = (_number(getattr(method, k), f"{what}.{k}") for k in ("delta", "gap", "overshoot"))
        inexactness = Inexactness(delta, gap, overshoot, method.lifted)
    else:
        raise TypeError(f"{what} must be an Inexactness, a polar method or its text, got {type(oracle).__name__}")
    if not inexactness.gap < 1.0:
        raise ValueError(f"{what} gives no descent (gap {inexactness.gap:.4g}): there is nothing to transfer")
    if not (0.0 < inexactness.overshoot < inf and 0.0 <= inexactness.delta < inf and inexactness.gap > -inf):
        raise ValueError(f"{what} must have finite delta >= 0, gap < 1 and overshoot > 0, got {inexactness}")
    return inexactness


def _number(value: Any, what: str) -> float:
    """A float, also from a tensor of one element."""
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{what} must be one number, got {type(value).__name__} {value!r}".splitlines()[0]) from None


def _why(rule: rules.Rule, a: Inexactness, b: Inexactness, spectrum: str, factors: rules.Factors, alpha: float) -> str:
    """One sentence; alpha is that of the rule, before it is cut."""
    on = f"on {spectrum}" if spectrum else "as measured"
    parts = [
        f"{on} the target keeps {1.0 - b.gap:.3g} of the descent and its longest direction is {b.overshoot:.3g}, "
        f"where the source has {1.0 - a.gap:.3g} and {a.overshoot:.3g}",
        f"so that {rule.keeps}, lr is multiplied by {factors.lr:.4g} and alpha by {factors.alpha:.4g}",
    ]
    if alpha > 1.0:
        parts.append(f"alpha would be {alpha:.3g} and is cut to 1, no momentum, where the rule's lr is no longer exact")
    if rule is rules.paper and max(a.delta, b.delta) >= 1.0:
        parts.append(f"delta is {max(a.delta, b.delta):.3g}, and the paper's theorem needs delta below 1")
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."
