"""Rules that carry values: identity, scale, composition, and the optimum of the statement that each one cites."""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from inexact_muon import Inexactness, lmo, measure, polar, predict, transfer
from inexact_muon_lab import theory
from inexact_muon_lab.tune import Transfer, rules, spectra
from inexact_muon_lab.tune.rules import RULES
from inexact_muon_lab.tune.spectra import SPECTRA, power_law
from matrices import matrix

PAIRS = [
    (Inexactness(0.1, 0.02, 1.1), Inexactness(0.5, 0.2, 1.3)),
    (Inexactness(0.9, -0.1, 1.9), Inexactness(0.3, 0.25, 0.9)),
    (Inexactness(0.0, 0.0, 1.0), Inexactness(0.8, 0.7, 0.4)),
]
PROBLEM = (2.0, 3.0, 1e6, 0.7)  # D0, L, K, rho sigma: noise enough that alpha* < 1


@st.composite
def oracles(draw: st.DrawFn) -> Inexactness:
    """gap < 1, overshoot >= 1 - gap, delta at least |gap| and overshoot - 1."""
    gap = draw(st.floats(-0.5, 0.95))
    overshoot = (1.0 - gap) * draw(st.floats(1.0, 3.0))
    return Inexactness(max(abs(gap), overshoot - 1.0) + draw(st.floats(0.0, 0.5)), gap, overshoot)


def scaled(i: Inexactness, s: float) -> Inexactness:
    """The same answers times s, on a spectrum where some direction is exact: delta becomes what it becomes."""
    return Inexactness(max(abs(1.0 - s), s * i.delta), 1.0 - s * (1.0 - i.gap), s * i.overshoot)


@pytest.mark.parametrize("rule", RULES)
@given(a=oracles(), lr=st.floats(1e-6, 10.0), momentum=st.floats(0.0, 0.999))
def test_source_equal_to_target_is_the_identity(rule: str, a: Inexactness, lr: float, momentum: float) -> None:
    found = transfer(lr, momentum, a, a, rule)
    assert (found.lr, found.momentum, found.lr_factor, found.alpha_factor) == (lr, momentum, 1.0, 1.0)
    assert not found.clipped


@pytest.mark.parametrize("rule", RULES)
@given(a=oracles(), s=st.floats(0.1, 10.0))
def test_a_scaled_oracle_gets_lr_over_s_and_the_same_momentum(rule: str, a: Inexactness, s: float) -> None:
    found = transfer(0.05, 0.95, a, scaled(a, s), rule)
    exact = found.lr == pytest.approx(0.05 / s, rel=1e-9) and found.momentum == pytest.approx(0.95, rel=1e-9)
    if rule != "paper":
        assert exact
    elif not 0.8 < s < 1.25:
        assert not exact


@pytest.mark.parametrize("rule", RULES)
@given(a=oracles(), b=oracles(), c=oracles())
def test_carrying_composes(rule: str, a: Inexactness, b: Inexactness, c: Inexactness) -> None:
    first = transfer(0.05, 0.9, a, b, rule)
    second, direct = transfer(first.lr, first.momentum, b, c, rule), transfer(0.05, 0.9, a, c, rule)
    if not (first.clipped or second.clipped or direct.clipped):
        assert second.lr == pytest.approx(direct.lr, rel=1e-9)
        assert second.momentum == pytest.approx(direct.momentum, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("rule", RULES)
@given(a=oracles(), b=oracles(), momentum=st.floats(0.0, 0.999))
def test_values_stay_in_their_range(rule: str, a: Inexactness, b: Inexactness, momentum: float) -> None:
    found = transfer(0.05, momentum, a, b, rule)
    assert found.lr > 0.0
    assert 0.0 < found.alpha <= 1.0
    assert 0.0 <= found.momentum < 1.0
    assert found.momentum == pytest.approx(1.0 - found.alpha, abs=1e-15)
    assert found.clipped == ((1.0 - momentum) * found.alpha_factor > 1.0)
    assert "\n" not in found.why
    assert found.why.endswith(".")


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_rules_are_ratios_of_optima(a: Inexactness, b: Inexactness) -> None:
    """Each rule against the function of `theory` that it cites, at constants that must cancel."""
    D0, L, K, noise = PROBLEM
    first, second = (theory.measured_stochastic_optimal(D0, L, K, noise, i.gap, i.overshoot) for i in (a, b))
    assert RULES["measured"](a, b) == pytest.approx((second.gamma / first.gamma, second.alpha / first.alpha))
    first, second = (theory.stochastic_optimal(D0, L, K, noise, i.delta) for i in (a, b))
    assert RULES["paper"](a, b) == pytest.approx((second.gamma / first.gamma, second.alpha / first.alpha))
    one, two = (theory.measured_deterministic_optimal(D0, L, K, i.gap, i.overshoot) for i in (a, b))
    assert RULES["deterministic"](a, b) == pytest.approx((two.gamma / one.gamma, 1.0))
    one_step, other_step = (theory.measured_polyak_step(D0, 0.3, i.gap) for i in (a, b))
    assert RULES["descent"](a, b) == pytest.approx((other_step / one_step, 1.0))


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda r: r.name)
def test_the_statement_that_a_rule_cites_exists(rule: rules.Rule) -> None:
    assert rule.source.partition(" ")[0] in theory.BOUNDS


TARGETS = ["polar-express:1", "polar-express:2", "jordan:5", "zolotarev(poles=1)", "shaped(factors=(power(p=-0.2),))"]


def measured(oracle: str, m: torch.Tensor) -> Inexactness:
    ball = lmo.Spectral(polar=polar.parse(oracle))
    return measure(ball, m, ball(m), exact=True)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("change", [lambda t: t + 0.8 * t**2, lambda t: t + 2.0 * abs(t) ** 3, lambda t: t + t**4])
def test_descent_is_exact_if_the_loss_changes_along_the_momentum_only(
    target: str, change: Callable[[float], float]
) -> None:
    """f(x + d) = f(x) + h(<m, d>): curvature of rank one along m, and beyond second order; best steps by a search."""
    m = matrix(24, 40, "power-law")

    def best(oracle: str) -> tuple[float, float]:
        d_hat = -polar.parse(oracle)(m)
        found = minimize_scalar(
            lambda gamma: change(float((m * (gamma * d_hat)).sum())), bounds=(0.0, 10.0), options={"xatol": 1e-12}
        )
        return float(found.x), float(found.fun)

    carried = transfer(best("exact-svd")[0], 0.9, measured("exact-svd", m), measured(target, m), rule="descent")
    step, lowest = best(target)
    assert carried.lr == pytest.approx(step, rel=1e-5)
    assert lowest == pytest.approx(best("exact-svd")[1], rel=1e-6), "and every oracle reaches the same loss"


@pytest.mark.parametrize("target", TARGETS)
def test_with_curvature_in_all_directions_alike_the_gap_enters_the_other_way_round(target: str) -> None:
    """Best steps for L |d|^2/2 in the spectral norm: what `descent` would be wrong about."""
    m = matrix(24, 40, "power-law")
    a, b = measured("exact-svd", m), measured(target, m)
    dual = float(torch.linalg.svdvals(m).sum())
    one, two = (theory.measured_adaptive_step(3.0, dual, i.gap, i.overshoot) for i in (a, b))
    assert two / one == pytest.approx((1 - b.gap) / (1 - a.gap) * (a.overshoot / b.overshoot) ** 2, rel=1e-9)
    assert two / one != pytest.approx(RULES["descent"](a, b).lr, rel=0.02)


@pytest.mark.parametrize(("a", "b"), PAIRS)
@pytest.mark.parametrize("rule", RULES.values(), ids=lambda r: r.name)
def test_formulas_in_the_table_are_the_code(rule: rules.Rule, a: Inexactness, b: Inexactness) -> None:
    """The text that users read, evaluated."""
    names = {}
    for key, i in (("A", a), ("B", b)):
        names |= {f"eta_{key}": i.gap, f"nu_{key}": i.overshoot, f"delta_{key}": i.delta}
        names[f"c_{key}"] = 1.0 - i.gap + i.overshoot
    text = {"lr": rule.lr, "alpha": rule.alpha}
    values = {k: eval(t.replace("^", "**").replace(") (", ") * ("), {}, names) for k, t in text.items()}
    assert rule(a, b) == pytest.approx((values["lr"], values["alpha"]), rel=1e-12)


def test_exponents_of_the_paper() -> None:
    """Doubling 1 + delta divides lr by 2^(1/4) and multiplies alpha by 2^(1/2)."""
    found = transfer(1.0, 0.95, Inexactness(0.0, 0.0, 1.0), Inexactness(1.0, 0.0, 1.0), "paper")
    assert found.lr == pytest.approx(2.0**-0.25, rel=1e-15)
    assert found.alpha == pytest.approx(0.05 * 2.0**0.5, rel=1e-12)
    assert "needs delta below 1" in found.why


def test_clipping_is_said() -> None:
    found = transfer(0.1, 0.1, Inexactness(0.0, 0.0, 1.0), Inexactness(0.9, 0.5, 1.9), "paper")
    assert (found.alpha, found.momentum, found.clipped) == (1.0, 0.0, True)
    assert found.alpha_factor == pytest.approx(1.9**0.5)
    assert "cut to 1" in found.why


@pytest.mark.parametrize("rule", RULES)
def test_methods_are_judged_on_the_spectrum(rule: str) -> None:
    s = power_law(200)
    source, target = polar.PolarExpress(5), "polar-express:2"
    found = transfer(0.05, 0.95, source, target, rule=rule, spectrum=s)
    by_hand = transfer(0.05, 0.95, predict(source, s), predict(polar.PolarExpress(2), s), rule=rule)
    assert dataclasses.replace(found, spectrum="", why="") == dataclasses.replace(by_hand, why="")
    assert (by_hand.spectrum, found.spectrum) == ("", "given singular values")
    shuffled = transfer(0.05, 0.95, source, target, rule, np.random.default_rng(0).permutation(s) * 7.0)
    assert shuffled.lr == pytest.approx(found.lr, rel=1e-12)


@pytest.mark.parametrize("rule", ["measured", "descent"])
def test_undershooting_wants_more_and_overshooting_less(rule: str) -> None:
    under, over = (transfer(1.0, 0.95, "polar-express:8", m, rule).lr for m in ("newton-schulz:2", "polar-express:2"))
    assert under > 1.2
    assert over < 0.9
    assert transfer(1.0, 0.95, "polar-express:8", "newton-schulz:2", "paper").lr < 1.0


def test_the_default_spectrum_is_stated() -> None:
    found = transfer(0.05, 0.95, "polar-express:5", "jordan:5")
    assert found.spectrum == spectra.DEFAULT
    assert spectra.DEFAULT in found.why
    assert found == transfer(0.05, 0.95, "polar-express:5", "jordan:5", spectrum=spectra.DEFAULT)
    assert transfer(0.05, 0.95, "jordan:5", Inexactness(0.1, 0.0, 1.0)).spectrum == spectra.DEFAULT


def test_the_answer_depends_on_the_spectrum() -> None:
    factors = [transfer(1.0, 0.9, "polar-express:5", "polar-express:1", "descent", s).lr_factor for s in SPECTRA]
    assert max(factors) > 1.5 * min(factors)


def test_records_are_frozen_and_take_tensors_of_one_element() -> None:
    one = Inexactness(*(torch.tensor([x]) for x in (0.1, 0.02, 1.1)))
    found = transfer(torch.tensor(0.05), 0.95, one, PAIRS[0][1])
    assert found.lr == pytest.approx(transfer(0.05, 0.95, *PAIRS[0]).lr, rel=1e-6)
    assert isinstance(found, Transfer)
    with pytest.raises(AttributeError):
        found.lr = 1.0  # type: ignore[misc]


GOOD = PAIRS[0][0]


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ((0.0, 0.95, GOOD, GOOD), ValueError, "lr must be positive"),
        ((math.nan, 0.95, GOOD, GOOD), ValueError, "lr must be positive"),
        (("fast", 0.95, GOOD, GOOD), TypeError, "lr must be one number"),
        ((0.1, 1.0, GOOD, GOOD), ValueError, r"momentum must lie in \[0, 1\)"),
        ((0.1, -0.1, GOOD, GOOD), ValueError, r"momentum must lie in \[0, 1\)"),
        ((0.1, 0.9, GOOD, GOOD, "mesured"), ValueError, "did you mean 'measured'"),
        ((0.1, 0.9, GOOD, GOOD, "paper", [1.0]), ValueError, "spectrum applies to polar methods only"),
        ((0.1, 0.9, GOOD, Inexactness(1.5, 1.2, 1.0)), ValueError, "target gives no descent"),
        ((0.1, 0.9, Inexactness(0.1, math.nan, 1.0), GOOD), ValueError, "source gives no descent"),
        ((0.1, 0.9, Inexactness(0.1, 0.1, 0.0), GOOD), ValueError, "overshoot > 0"),
        ((0.1, 0.9, Inexactness(0.1, 0.1, torch.ones(3)), GOOD), TypeError, "source.overshoot must be one number"),
        ((0.1, 0.9, 5, GOOD), TypeError, "source must be an Inexactness, a polar method or its text, got int"),
        ((0.1, 0.9, "polar-expres:5", GOOD), ValueError, "did you mean 'polar-express'"),
        ((0.1, 0.9, "jordan:5", "you:6", "measured", "gpt-lat"), ValueError, "did you mean 'gpt-late'"),
        ((0.1, 0.9, "jordan:5", "you:6", "measured", [1.0, -1.0]), ValueError, "must hold singular values"),
        ((0.1, 0.9, "jordan:5", "you:6", "measured", [0.0]), ValueError, "must hold singular values"),
        ((0.1, 0.9, "jordan:5", "you:6", "measured", np.ones((2, 3))), ValueError, "a list of singular values"),
    ],
)
def test_bad_input_is_one_sentence(arguments: tuple[object, ...], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words) as caught:
        transfer(*arguments)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
