"""Measured left sides stay below the bounds, on every problem and oracle."""

import numpy as np
import pytest
import torch

from inexact_muon import lmo, polar
from inexact_muon.lmo import Perturbed, Spectral
from inexact_muon_lab import theory
from inexact_muon_lab.bounds import verify
from inexact_muon_lab.problems.blocks import Blocks
from inexact_muon_lab.problems.matrix import Exponential, Logistic, MatrixProblem, Quadratic
from reference_step import reference_step
from tiers import kept

EXACT = Spectral(polar=polar.ExactSVD())
SPECTRAL = (
    EXACT,
    Perturbed(EXACT, 0.1),
    Perturbed(EXACT, 0.5, "worst"),
    Perturbed(EXACT, 0.9),
    *(
        Spectral(polar=p)
        for p in (polar.PolarExpress(5), polar.PolarExpress(2), polar.Jordan(5), polar.NewtonSchulz(3))
    ),
)
OTHERS = (
    lmo.Sign(),
    Perturbed(lmo.Sign(), 0.3, "worst"),
    Perturbed(lmo.Euclidean(), 0.6),
    Perturbed(lmo.ColNorm(), 0.3),
    Perturbed(lmo.RowNorm(), 0.3, "worst"),
    lmo.Nuclear(steps=3),
    Perturbed(lmo.Nuclear(), 0.3),
)
QUADRATIC, ROUND, LOGISTIC = Quadratic(4, 3), Quadratic(3, 4, condition=1.0), Logistic(3, 4)
CASES: list[tuple[MatrixProblem, lmo.Ball]] = [
    *((p, b) for p in (QUADRATIC, ROUND, LOGISTIC) for b in SPECTRAL),
    *((QUADRATIC, b) for b in OTHERS),
    *((ROUND, b) for b in OTHERS[:5]),  # the nuclear ball reaches the minimum of it, in three steps
]
STOCHASTIC = [(QUADRATIC, b) for b in (*SPECTRAL, *OTHERS)] + [(LOGISTIC, b) for b in SPECTRAL[:5]]


def assert_all_hold(rows: list[verify.BoundRow], least: int) -> None:
    assert len(rows) >= least
    for row in rows:
        assert np.isfinite(row.ours), row
        assert row.holds, row
        assert row.sure, row


@pytest.mark.parametrize(("problem", "ball"), CASES, ids=lambda v: getattr(v, "name", "") + "-" + str(v)[-40:])
def test_deterministic(problem: MatrixProblem, ball: lmo.Ball) -> None:
    for K in (1, 12):
        assert_all_hold(list(verify.deterministic(problem, ball, K)), 4)


@pytest.mark.parametrize(("problem", "ball"), STOCHASTIC, ids=lambda v: getattr(v, "name", "") + "-" + str(v)[-40:])
def test_stochastic(problem: MatrixProblem, ball: lmo.Ball) -> None:
    """Mean over 32 runs, plus half of its confidence interval."""
    assert_all_hold(list(verify.stochastic(problem, ball, 25, sigma=1.0, runs=32, delta=0.3)), 6)


MANY_STEPS = [
    *((QUADRATIC, ball) for ball in (Perturbed(EXACT, 0.5, "worst"), Spectral(polar=polar.PolarExpress(2)))),
    *((QUADRATIC, ball) for ball in (lmo.Sign(), lmo.Nuclear(steps=3))),
    (LOGISTIC, Perturbed(EXACT, 0.1)),
]
"""Perturbed, polynomial; other balls; another problem."""


@pytest.mark.slow
@pytest.mark.parametrize("sigma", [0.1, 3.0])
@pytest.mark.parametrize("case", kept(STOCHASTIC, MANY_STEPS), ids=lambda v: f"{v[0].name}-{str(v[1])[-40:]}")
def test_stochastic_in_many_steps(case: tuple[MatrixProblem, lmo.Ball], sigma: float) -> None:
    assert_all_hold(list(verify.stochastic(*case, 300, sigma=sigma, runs=64, delta=0.3)), 6)


@pytest.mark.parametrize("ball", SPECTRAL, ids=lambda b: str(b)[-40:])
def test_l0l1(ball: lmo.Ball) -> None:
    for problem in (Exponential(4, 3), Exponential(3, 3, spread=3.0)):
        for K in (1, 6):
            assert_all_hold(list(verify.smooth(problem, ball, K)), 1)


@pytest.mark.parametrize(
    "balls",
    [
        (EXACT, lmo.Sign(), lmo.ColNorm()),
        (Spectral(polar=polar.PolarExpress(3)), Perturbed(lmo.Sign(), 0.3, "worst"), Perturbed(lmo.RowNorm(), 0.1)),
        (Perturbed(EXACT, 0.8), Perturbed(EXACT, 0.01), Perturbed(lmo.Euclidean(), 0.2)),
    ],
    ids=["exact", "mixed", "uneven"],
)
def test_layers(balls: tuple[lmo.Ball, ...]) -> None:
    for coupling in (0.0, 0.5, 5.0):
        assert_all_hold(list(verify.layerwise(Blocks(coupling=coupling), balls, 8)), 2)


@pytest.mark.parametrize("ball", [*SPECTRAL, *OTHERS], ids=lambda b: str(b)[-40:])
def test_descent_lemmas_at_every_step(ball: lmo.Ball) -> None:
    """Per step and per run, under noise; ours also after the reverse triangle inequality; it implies the paper's."""
    L, K, gamma = QUADRATIC.smoothness(ball), 20, 0.05
    run = verify.follow(QUADRATIC, ball, K, lambda *_: gamma, np.full(K, 0.4), sigma=1.0, runs=4)
    for k in range(K):
        for i in range(4):
            f, after, dual, norm, e, e_next, d, gap, nu = (
                float(a[k, i])
                for a in (run.loss, run.loss[1:], run.dual, run.dual_momentum, run.error, run.error_next,
                          run.delta, run.gap, run.overshoot)
            )  # fmt: skip
            ours = theory.measured_descent(f, L, gamma, norm, e, gap, nu)
            assert after <= ours + 1e-9
            lost = f - after + gamma * (1 - gap + nu) * e + L * (gamma * nu) ** 2 / 2
            assert gamma * (1 - gap) * dual <= lost + 1e-9
            if d < 1:
                assert ours <= theory.descent(f, L, gamma, norm, e_next, d) + 1e-9


@pytest.mark.parametrize("ball", [EXACT, lmo.Sign(), Perturbed(lmo.Euclidean(), 0.6)], ids=lambda b: b.name)
def test_momentum_error_at_every_step(ball: lmo.Ball) -> None:
    """Mean over the runs; five standard errors, for it is looked at many times."""
    K, sigma = 30, 1.0
    rho_sigma, L = ball.rho((4, 3)) * sigma, QUADRATIC.smoothness(ball)
    for alpha in (0.05, 0.4, 1.0):
        gammas, alphas = np.linspace(0.1, 0.01, K), np.full(K, alpha)
        run = verify.follow(QUADRATIC, ball, K, lambda k, *_, g=gammas: float(g[k]), alphas, sigma, runs=200)
        bound = theory.measured_momentum_errors(L, rho_sigma, gammas, alphas, run.overshoot.max(1))
        error, spread = run.error.mean(1), run.error.std(1, ddof=1) / np.sqrt(200)
        assert (error <= bound + 5 * spread).all()


@pytest.mark.parametrize("ball", [EXACT, Perturbed(EXACT, 0.5, "worst"), Perturbed(lmo.Sign(), 0.3)], ids=str)
def test_weighted_means_under_noise(ball: lmo.Ball) -> None:
    """Lemma 4 and ours before they are weakened to a minimum, each with its weights and its steps."""
    K, D0, L = 60, QUADRATIC.initial_gap, QUADRATIC.smoothness(ball)
    gammas, alphas = theory.agnostic_schedule(K, 0.3, 0.8)
    run = verify.follow(QUADRATIC, ball, K, lambda k, *_: float(gammas[k]), alphas, sigma=0.5, runs=64)
    d, gap, nu, rho_sigma = run.delta.max(1), run.gap.max(1), run.overshoot.max(1), 0.5 * ball.rho((4, 3))
    ours = theory.measured_varying_bound(D0, L, rho_sigma, gammas, alphas, gap, nu)
    assert np.average(run.dual[:-1].mean(1), weights=gammas * (1 - gap)) <= ours
    paper = theory.varying_bound(D0, L, rho_sigma, gammas, alphas, d)
    assert np.average(run.dual[1:].mean(1), weights=gammas * (1 - d)) <= paper
    errors = run.error.mean(1)
    ours = theory.measured_general_bound(D0, L, gammas, gap, nu, errors)
    assert np.average(run.dual[:-1].mean(1), weights=gammas * (1 - gap)) <= ours
    paper = theory.general_stochastic_bound(D0, L, gammas, d, errors)
    assert np.average(run.dual[1:].mean(1), weights=gammas * (1 - d)) <= paper


@pytest.mark.parametrize("ball", [*SPECTRAL, *OTHERS], ids=lambda b: str(b)[-40:])
def test_two_numbers_lie_where_delta_says(ball: lmo.Ball) -> None:
    run = verify.follow(QUADRATIC, ball, 20, lambda *_: 0.05, np.full(20, 0.4), sigma=1.0, runs=4)
    assert (np.abs(run.gap) <= run.delta + 1e-9).all()
    assert (run.overshoot <= 1 + run.delta + 1e-9).all()
    assert (1 - run.gap <= run.overshoot + 1e-9).all()


def test_the_runner_is_algorithm_1() -> None:
    """Against the optimizers' slow twin, step by step."""
    ball, gammas, alphas = Perturbed(EXACT, 0.2), [0.1, 0.05, 0.02], [0.3, 0.7, 1.0]
    run = verify.follow(QUADRATIC, ball, 3, lambda k, *_: gammas[k], np.array(alphas))
    x, m = QUADRATIC.start[None], None
    for k in range(3):
        assert run.loss[k, 0] == pytest.approx(float(QUADRATIC.loss(x)), rel=1e-12)
        g = QUADRATIC.gradient(x)
        x, m = reference_step(x, m, g, lr=gammas[k], momentum=1 - alphas[k], ball=ball)
        assert run.error[k, 0] == pytest.approx(float(ball.dual_norm(m - g)), rel=1e-9, abs=1e-12)
    assert run.loss[3, 0] == pytest.approx(float(QUADRATIC.loss(x)), rel=1e-12)


def test_the_noise_has_its_size() -> None:
    """alpha = 1: the momentum error is the noise; E||xi||_2^2 = sigma^2."""
    euclid = lmo.Euclidean()
    run = verify.follow(QUADRATIC, euclid, 50, lambda *_: 0.01, sigma=2.0, runs=64)
    assert float((run.error**2).mean()) == pytest.approx(4.0, rel=0.05)


def test_the_printed_one_step_lemma_is_false() -> None:
    """Lemma 1 as printed has the drift of the current step: a long step before a short one breaks it; ours holds."""
    gammas = [1.0, 1e-6]
    run = verify.follow(QUADRATIC, EXACT, 2, lambda k, *_: gammas[k], np.array([0.1, 0.1]))
    L, error = QUADRATIC.smoothness(EXACT), run.error[:, 0]
    printed = 0.9 * error[0] + L * gammas[1]
    assert error[1] > printed
    assert error[1] <= theory.momentum_error_step(float(error[0]), L, 0.0, gammas[0], 0.1, 0.0)


def test_averages_of_the_two_numbers_are_not_enough() -> None:
    """f(x) = x^2/2 from x = 1. An oracle that hardly moves for half of the run, while the gradient is large."""
    D0, L, K, gamma = 0.5, 1.0, 1000, 0.1
    gaps = np.where(np.arange(K) < K // 2, 1.0 - 1e-6, 0.0)
    nus = 1.0 - gaps
    x, dual = 1.0, np.empty(K)
    for k in range(K):
        dual[k] = abs(x)
        x -= gamma * nus[k] * np.sign(x)
    averaged = theory.measured_deterministic_bound(D0, L, K, gamma, float(gaps.mean()), float(nus.mean()))
    assert dual.mean() > 10 * averaged
    assert dual.mean() <= theory.measured_deterministic_bound(D0, L, K, gamma, float(gaps.max()), float(nus.max()))
    weights = gamma * (1.0 - gaps)
    honest = theory.measured_deterministic_general(D0, L, np.full(K, gamma), gaps, nus)
    assert dual.min() <= (weights * dual).sum() / weights.sum() <= honest


def test_zero_initialised_momentum_is_outside() -> None:
    """m^0 = 0: the first errors are those of the whole gradient, which Lemma 1 does not know."""
    L, alpha, gamma = QUADRATIC.smoothness(EXACT), 0.01, 1e-4
    g = QUADRATIC.gradient(QUADRATIC.start)
    m = (1.0 - alpha) * torch.zeros_like(g) + alpha * g
    assert float(EXACT.dual_norm(m - g)) > 10 * theory.measured_momentum_error(0, L, 0.0, gamma, alpha, 1.0)
