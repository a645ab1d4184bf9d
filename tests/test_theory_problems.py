"""The problems have the constants they claim: checked by search and by sampling."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inexact_muon import lmo, polar
from inexact_muon_lab.problems.blocks import Blocks
from inexact_muon_lab.problems.matrix import Exponential, Logistic, MatrixProblem, Quadratic
from pages import ROOT, load_module

BROXIMAL = load_module(ROOT / "studies/theory/broximal.py")
broximal_step, project = BROXIMAL.broximal_step, BROXIMAL.project
EXACT = lmo.Spectral(polar=polar.ExactSVD())
BALLS = (EXACT, lmo.Sign(), lmo.Euclidean(), lmo.ColNorm(), lmo.RowNorm(), lmo.Nuclear())
PROBLEMS: tuple[MatrixProblem, ...] = (
    Quadratic(5, 3),
    Quadratic(3, 5, condition=1.0),
    Logistic(4, 5),
    Exponential(3, 5),
)
SMOOTH = [(p, b) for p in PROBLEMS[:2] for b in BALLS] + [(PROBLEMS[2], b) for b in (EXACT, lmo.Euclidean())]


def normal(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.name)
def test_gradient_is_that_of_the_loss(problem: MatrixProblem) -> None:
    x = normal(4, problem.n, problem.m, seed=1).requires_grad_()
    (wanted,) = torch.autograd.grad(problem.loss(x).sum(), x)
    torch.testing.assert_close(problem.gradient(x.detach()), wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.name)
def test_lowest_is_a_lower_bound_and_attained_where_known(problem: MatrixProblem) -> None:
    x = 3.0 * normal(200, problem.n, problem.m, seed=2)
    assert float(problem.loss(x).min()) >= problem.lowest
    if not isinstance(problem, Logistic):
        assert float(problem.loss(problem.target)) == pytest.approx(problem.lowest)  # type: ignore[attr-defined]
    assert problem.initial_gap > 0


@pytest.mark.parametrize(("problem", "ball"), SMOOTH, ids=lambda v: getattr(v, "name", str(v)))
def test_smoothness_holds(problem: MatrixProblem, ball: lmo.Ball) -> None:
    """||grad f(X+D) - grad f(X)||* <= L norm(D), small and large steps, sparse and dense ones."""
    L = problem.smoothness(ball)
    x, d = (normal(300, problem.n, problem.m, seed=s) for s in (3, 4))
    d = d * torch.logspace(-3, 1, 300, dtype=d.dtype)[:, None, None]
    d[::3] = d[::3] * (normal(100, problem.n, problem.m, seed=5) > 0.8)
    change = ball.dual_norm(problem.gradient(x + d) - problem.gradient(x))
    assert bool((change <= L * ball.norm(d) * (1 + 1e-9)).all())


@pytest.mark.parametrize(("problem", "ball"), [(p, b) for p, b in SMOOTH if p.name == "quadratic"], ids=str)
def test_smoothness_of_the_quadratic_is_attained(problem: Quadratic, ball: lmo.Ball) -> None:
    """Alternating ascent on <grad difference(D), E> over two unit balls reaches L: the constant is exact."""
    best = 0.0
    for seed in range(12):
        d = normal(problem.n, problem.m, seed=seed)
        for _ in range(60):
            d = -ball.exact(problem.gradient(d) - problem.gradient(torch.zeros_like(d)))
        best = max(best, float(ball.dual_norm(problem.gradient(d) - problem.gradient(torch.zeros_like(d)))))
    assert best == pytest.approx(problem.smoothness(ball), rel=1e-6)


def test_half_squared_distance() -> None:
    assert Quadratic(7, 4, condition=1.0).smoothness(EXACT) == pytest.approx(4.0)
    assert Quadratic(7, 4, condition=1.0).smoothness(lmo.Sign()) == pytest.approx(28.0)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    far=st.floats(0.0, 6.0),
    max_step=st.floats(1e-3, 0.77),
    shape=st.sampled_from([(3, 3), (2, 5), (6, 1)]),
)
def test_local_smoothness_holds(seed: int, far: float, max_step: float, shape: tuple[int, int]) -> None:
    problem = Exponential(*shape)
    L0, L1 = problem.local_smoothness(max_step)
    x = problem.target + far * normal(*shape, seed=seed)
    d = normal(*shape, seed=seed + 1)
    d = max_step * d / EXACT.norm(d)
    g = problem.gradient(x)
    above = problem.loss(x) + (g * d).sum() + 0.5 * (L0 + L1 * EXACT.dual_norm(g)) * max_step**2
    assert float(problem.loss(x + d)) <= float(above) * (1 + 1e-12)
    assert 1 / problem.local_smoothness()[1] <= 0.77


def test_no_constant_that_is_not_proved() -> None:
    with pytest.raises(ValueError, match="no global L"):
        Exponential().smoothness(EXACT)
    with pytest.raises(ValueError, match="no constant is proved for the ball sign"):
        Logistic().smoothness(lmo.Sign())
    with pytest.raises(ValueError, match="plain ball"):
        Quadratic().smoothness(lmo.Sign(scale="rms"))


def test_blocks_are_jointly_smooth_and_not_separately() -> None:
    """The correction to the layer-wise assumption: constants of one block at a time are too small."""
    problem, balls = Blocks(weights=(0.01, 0.01, 0.01), coupling=2.0), (EXACT, lmo.Sign(), lmo.ColNorm())
    x = [normal(*shape, seed=9) for shape in problem.shapes]
    worst = {True: 0.0, False: 0.0}
    gradients = problem.gradient([torch.zeros_like(xi) for xi in x])
    d = [ball.exact(c) for ball, c in zip(balls, problem._directions, strict=True)]  # all blocks along the coupling
    for joint in worst:
        Ls = problem.smoothness(balls, joint)
        zero = [torch.zeros_like(xi) for xi in x]
        norms = [1.0 / (L / float(b.dual_norm(c))) for L, b, c in zip(Ls, balls, problem._directions, strict=True)]
        step = [s * di for s, di in zip(norms, d, strict=True)]
        linear = sum(float((g * s).sum()) for g, s in zip(gradients, step, strict=True))
        rise = float(problem.loss(step) - problem.loss(zero)) - linear
        worst[joint] = rise / (0.5 * sum(L * s**2 for L, s in zip(Ls, norms, strict=True)))
    assert worst[True] <= 1.0
    assert worst[False] > 2.5
    torch.testing.assert_close(
        problem.gradient(x),
        list(torch.autograd.grad(problem.loss(y := [xi.clone().requires_grad_() for xi in x]), y)),
    )


@pytest.mark.parametrize("ball", [EXACT, lmo.Sign(), lmo.Euclidean()], ids=lambda b: b.name)
@pytest.mark.parametrize("problem", [Quadratic(4, 3), Quadratic(4, 3, condition=1.0)], ids=str)
def test_ball_proximal_point_is_the_ideal(problem: Quadratic, ball: lmo.Ball) -> None:
    """At or below the LMO step of the same length, contracts as proved, reaches the minimum in finitely many steps."""
    x, radius, values = problem.start, 0.4, []
    for _ in range(60):
        distance, loss = float(ball.norm(problem.target - x)), float(problem.loss(x))
        values.append(loss)
        new = broximal_step(problem, ball, x, radius)
        assert float(ball.norm(new - x)) <= radius * (1 + 1e-9)
        linear = x + radius * ball.exact(problem.gradient(x))
        assert float(problem.loss(new)) <= float(problem.loss(linear)) + 1e-12
        assert float(problem.loss(new)) <= max(0.0, 1 - radius / distance) * loss + 1e-12
        x = new
        if distance <= radius:
            break
    assert float(problem.loss(x)) <= 1e-12
    assert values == sorted(values, reverse=True)


def test_ball_proximal_point_of_the_plain_distance_is_a_projection() -> None:
    problem = Quadratic(4, 3, condition=1.0)
    for ball in (EXACT, lmo.Sign(), lmo.Euclidean()):
        step = broximal_step(problem, ball, problem.start, 0.5)
        torch.testing.assert_close(step, project(ball, problem.target, 0.5), rtol=0, atol=1e-10)


def test_ball_proximal_errors() -> None:
    with pytest.raises(ValueError, match="no projection is known here for the ball nuclear"):
        broximal_step(Quadratic(), lmo.Nuclear(), Quadratic().start, 0.1)
    with pytest.raises(RuntimeError, match="did not converge"):
        broximal_step(Quadratic(), EXACT, Quadratic().start, 0.1, most=2)
