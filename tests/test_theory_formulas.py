"""Every formula of `theory` against another way to compute it."""

import inspect
from collections.abc import Callable
from itertools import pairwise
from types import ModuleType

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inexact_muon import lmo, polar
from inexact_muon.inexactness import Inexactness
from inexact_muon.optim import AgnosticSchedule, LMOOptimizer, Smooth
from inexact_muon.polar import NewtonSchulz, PolarExpress
from inexact_muon_lab import theory
from theory_checks import CHECKS


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__)
def test_formulas(check: Callable[[ModuleType], None]) -> None:
    check(theory)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("deterministic_optimal", "D0 L K delta"),
        ("stochastic_bound", "D0 L K rho_sigma gamma alpha delta"),
        ("stochastic_optimal", "D0 L K rho_sigma delta"),
        ("measured_stochastic_bound", "D0 L K rho_sigma gamma alpha gap overshoot"),
        ("measured_stochastic_optimal", "D0 L K rho_sigma gap overshoot"),
        ("l0l1_iterations", "D0 L0 L1 eps delta"),
        ("layerwise_iterations", "D0 eps deltas"),
    ],
)
def test_agreed_signatures(name: str, parameters: str) -> None:
    assert list(inspect.signature(getattr(theory, name)).parameters) == parameters.split()


SCALARS = {
    "D0": 2.0,
    "L": 3.0,
    "K": 500,
    "rho_sigma": 0.7,
    "gamma": 0.02,
    "alpha": 0.2,
    "eps": 0.1,
    "k": 3,
    "L0": 1.0,
    "L1": 2.0,
}
"""One value for every parameter that is not an error; enough for all statements without sequences."""


def by_error(kinds: set[str], error: str) -> list[theory.Statement]:
    return [
        s
        for s in theory.BOUNDS.values()
        if s.kind in kinds
        and error in (p := inspect.signature(s.function).parameters)
        and set(p) <= {*SCALARS, *ERRORS}
    ]


ERRORS = {"delta", "gap", "overshoot", "deltas", "gaps", "overshoots"}


def value(s: theory.Statement, **errors: object) -> float:
    needed = inspect.signature(s.function).parameters
    found = s.function(**{name: SCALARS[name] for name in needed if name in SCALARS}, **errors)
    return float(sum(found) if s.name.endswith(("-terms", "-parts")) else getattr(found, "bound", found))


KINDS = {"bound", "optimum", "count", "lemma", "factor"}


@pytest.mark.parametrize("s", by_error(KINDS, "delta"), ids=lambda s: s.name)
def test_monotone_in_delta(s: theory.Statement) -> None:
    if s.name == "stochastic-sensitivity":
        pytest.skip("an exponent, not a bound")
    values = [value(s, delta=i / 40) for i in range(39)]
    assert all(a < b for a, b in pairwise(values))


@settings(max_examples=100)
@given(
    delta=st.floats(0.0, 0.97),
    lost=st.floats(0.0, 1.0),
    extra=st.floats(0.0, 1.0),
    more=st.floats(0.0, 0.5),
)
def test_two_numbers_grow_and_never_exceed_the_paper(delta: float, lost: float, extra: float, more: float) -> None:
    """Any pair that delta allows: gap in [-delta, delta], overshoot in [1-gap, 1+delta]."""
    gap = delta * (2 * lost - 1)
    overshoot = (1 - gap) + (delta + gap) * extra
    for s in by_error(KINDS, "gap"):
        if s.name in ("measured-stochastic-minimum", "measured-stochastic-iterations"):
            continue  # slow, and made of a bound that is here
        found = value(s, gap=gap, overshoot=overshoot)
        worse = value(s, gap=gap + more * (1 - gap) * 0.9, overshoot=overshoot * (1 + more))
        assert found <= worse * (1 + 1e-12), s.name
        name = s.name.removeprefix("measured-").removesuffix("-next")
        if name in theory.BOUNDS:
            assert found <= value(theory.BOUNDS[name], delta=delta) * (1 + 1e-9), s.name
    factor = theory.measured_stochastic_factor(gap, overshoot)
    assert 1 - 1e-12 <= factor <= theory.measured_deterministic_factor(gap, overshoot) * (1 + 1e-12)


PAIRS = st.lists(st.tuples(*[st.floats(0.0, 1.0)] * 5), min_size=1, max_size=8)


@settings(max_examples=60)
@given(PAIRS)
def test_two_number_sums_never_exceed_the_paper(draws: list[tuple[float, ...]]) -> None:
    """Any sequences; where the paper's left side is a step later, ours is moved there too."""
    D0, L, rho_sigma, K = 2.0, 3.0, 0.7, len(draws)
    g, a, d, lost, extra = (np.array(column) for column in zip(*draws, strict=True))
    gammas, alphas, deltas = 0.01 + g, 0.01 + 0.99 * a, 0.97 * d
    gaps = deltas * (2 * lost - 1)
    nus = (1 - gaps) + (deltas + gaps) * extra
    slack = 1 + 1e-9
    paper = theory.deterministic_general(D0, L, gammas, deltas)
    assert theory.measured_deterministic_general(D0, L, gammas, gaps, nus) <= paper * slack
    assert theory.measured_adaptive_bound(D0, L, gaps, nus) <= theory.adaptive_bound(D0, L, deltas) * slack
    factor = theory.worst_layer_factor(deltas)
    assert theory.measured_worst_layer_factor(gaps, nus) <= factor * slack
    assert theory.measured_layerwise_bound(D0, K, gaps, nus) <= theory.layerwise_bound(D0, K, deltas) * slack
    ours = theory.measured_momentum_errors(L, rho_sigma, gammas, alphas, nus)
    paper_errors = theory.momentum_errors(L, rho_sigma, gammas, alphas, deltas)
    assert (ours <= paper_errors * slack).all()
    shift = float(L * (gammas**2 * (1 - gaps) * nus).sum() / (gammas * (1 - gaps)).sum())
    moved = theory.measured_varying_bound(D0, L, rho_sigma, gammas, alphas, gaps, nus) + shift
    assert moved <= theory.varying_bound(D0, L, rho_sigma, gammas, alphas, deltas) * slack


@given(delta=st.floats(0.0, 0.97), gamma=st.floats(1e-4, 1.0), alpha=st.floats(1e-3, 1.0))
def test_theorem_2_as_printed_is_true_too(delta: float, gamma: float, alpha: float) -> None:
    """Without 1+delta in front of (7+3 delta)/2: above our bound on the same left side."""
    D0, L, K, rho_sigma = 2.0, 3.0, 500, 0.7
    noise = 2 * rho_sigma * (1 / (alpha * K) + alpha**0.5)
    printed = D0 / (K * gamma) + noise + L * gamma * ((7 + 3 * delta) / 2 + 2 * (1 + delta) / alpha)
    ours = theory.measured_stochastic_bound_next(D0, L, K, rho_sigma, gamma, alpha, delta, 1 + delta)
    assert ours <= printed / (1 - delta) * (1 + 1e-12)
    assert printed / (1 - delta) <= theory.stochastic_bound(D0, L, K, rho_sigma, gamma, alpha, delta) * (1 + 1e-12)


def test_the_optimizers_take_the_steps_of_the_theorems() -> None:
    """optim's step length and schedule against theory's."""
    for l0, l1, delta in ((3.0, 0.0, 0.2), (1.0, 2.0, 0.5)):
        step = float(Smooth(l0, l1, delta)(1.0, torch.tensor(1.7, dtype=torch.float64)))
        assert step == pytest.approx(theory.adaptive_step(l0 + l1 * 1.7, 1.7, delta), rel=1e-14)
    weight = torch.nn.Parameter(torch.eye(3))
    optimizer = LMOOptimizer([weight], lr=0.3, momentum=0.2, ball=lmo.Spectral())
    schedule = AgnosticSchedule(optimizer)
    for gamma, alpha in zip(*theory.agnostic_schedule(5, 0.3, 0.8), strict=True):
        assert optimizer.param_groups[0]["lr"] == pytest.approx(gamma, rel=1e-14)
        assert 1 - optimizer.param_groups[0]["momentum"] == pytest.approx(alpha, rel=1e-14)
        weight.grad = torch.ones(3, 3)
        optimizer.step()
        schedule.step()


@pytest.mark.parametrize("s", by_error(KINDS, "gap"), ids=lambda s: s.name)
def test_exact_oracle(s: theory.Statement) -> None:
    """delta = 0 is (gap, overshoot) = (0, 1), and where the paper's proof is ours both are the exact bound."""
    name = s.name.removeprefix("measured-").removesuffix("-next")
    if name not in theory.BOUNDS:
        return
    exact, paper = value(s, gap=0.0, overshoot=1.0), value(theory.BOUNDS[name], delta=0.0)
    sharper = ("stochastic-", "momentum-error", "varying")
    if any(word in s.name for word in sharper) and s.kind != "factor":
        assert exact < paper
    else:
        assert exact == pytest.approx(paper, rel=1e-12)


def test_exact_bounds_are_the_known_ones() -> None:
    """Kovalev (2025) and Pethick et al. (2025) for exact oracles: sqrt(2 D0 L/K), and Theorem 2 at delta = 0."""
    assert theory.deterministic_optimal(2.0, 3.0, 500, 0.0).bound == pytest.approx((12.0 / 500) ** 0.5, rel=1e-12)
    exact = 2.0 / (500 * 0.02) + 2 * 0.7 * (1 / (0.2 * 500) + 0.2**0.5) + 3.0 * 0.02 * (3.5 + 2 / 0.2)
    assert theory.stochastic_bound(2.0, 3.0, 500, 0.7, 0.02, 0.2, 0.0) == pytest.approx(exact, rel=1e-12)


def test_formula_and_minimum_meet_as_K_grows() -> None:
    """Corollary 3 against the numerical minimum: alpha and gamma meet like K^(-1/4), the bound like K^(-1/2)."""
    ratios = []
    for K in (1e4, 1e6, 1e8, 1e10):
        formula, best = theory.stochastic_optimal(1, 1, K, 1, 0.1), theory.stochastic_minimum(1, 1, K, 1, 0.1)
        assert best.bound <= formula.bound
        ratios.append((formula.bound / best.bound - 1, abs(formula.alpha / best.alpha - 1)))
    for (a, b), (c, d) in pairwise(ratios):
        assert c < 0.2 * a
        assert d < 0.5 * b


def test_our_formula_stays_within_two_percent_of_the_minimum() -> None:
    for K in (1e4, 1e6, 1e8, 1e10, 1e14):
        formula = theory.measured_stochastic_optimal(1, 1, K, 1, 0.1, 1.1)
        best = theory.measured_stochastic_minimum(1, 1, K, 1, 0.1, 1.1)
        assert 1.0 <= formula.bound / best.bound < 1.03
    assert formula.bound / best.bound == pytest.approx((2**0.25 + 2**-0.25) / 2, abs=1e-3)
    assert best.alpha / formula.alpha == pytest.approx(2**0.5, abs=2e-3)


def test_factors_are_those_of_a_measurement() -> None:
    found = Inexactness(0.3, 0.1, 1.25)
    assert found.factor == pytest.approx(theory.measured_deterministic_factor(0.1, 1.25), rel=1e-14)
    assert found.stochastic_factor == pytest.approx(theory.measured_stochastic_factor(0.1, 1.25), rel=1e-14)


@pytest.mark.parametrize(
    "ball", [lmo.Spectral(), lmo.Sign(), lmo.Euclidean(), lmo.ColNorm(), lmo.RowNorm(), lmo.Nuclear()]
)
@pytest.mark.parametrize("shape", [(4, 9), (9, 4), (1, 5)])
def test_rho_is_that_of_the_balls(ball: lmo.Ball, shape: tuple[int, int]) -> None:
    assert theory.rho(ball.name, *shape) == pytest.approx(ball.rho(shape), rel=1e-14)


@pytest.mark.parametrize("degree", [3, 5])
@pytest.mark.parametrize("lower", [0.5, 0.1, 0.01])
def test_error_model_bounds_the_methods(degree: int, lower: float) -> None:
    """Appendix A holds for the best polynomials and for the classical ones, which both have its order."""
    for steps in range(1, 7):
        model = theory.polar_express_error(lower, steps, degree)
        best = PolarExpress(steps, lower=lower, degree=degree, safety=1.0, cushion=0.0)
        for method in (best, NewtonSchulz(steps, degree=degree)):
            assert isinstance(method, polar.PolarMethod)
            assert method.error_bound(lower) <= model + 1e-12, str(method)
