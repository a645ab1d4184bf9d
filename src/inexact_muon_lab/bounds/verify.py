"""Runs Algorithm 1 on problems with known constants and compares measured values with every bound.

A row is one statement on one run: the measured left side, the paper's bound, and the two-number bound. delta, gap and
overshoot are measured exactly at each step; bounds with constant ones use the largest of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf, sqrt
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from inexact_muon.inexactness import assess
from inexact_muon.lmo import Ball
from inexact_muon_lab import theory
from inexact_muon_lab.problems.blocks import Blocks
from inexact_muon_lab.problems.matrix import Exponential, MatrixProblem

Array = NDArray[np.float64]
Step = Callable[[int, float, float, float, float], float]
"""gamma from k, ||grad_k||*, delta_k, gap_k, overshoot_k."""


@dataclass(frozen=True)
class BoundRow:
    """One statement on one run: the measured left side (the mean over the runs if there is noise), half of its 95 %
    confidence interval, the paper's bound (inf if delta reached 1, where it has none) and the two-number bound."""

    statement: str
    left: float
    margin: float
    paper: float
    ours: float

    @property
    def holds(self) -> bool:
        """left <= ours <= paper, up to rounding."""
        return self.left <= self.ours * (1.0 + 1e-9) and self.ours <= self.paper * (1.0 + 1e-9)

    @property
    def sure(self) -> bool:
        """left + margin <= ours: the runs suffice to show it."""
        return self.left + self.margin <= self.ours * (1.0 + 1e-9)


@dataclass(frozen=True)
class Trace:
    """Measurements of a batch of runs, (K, runs), with one more row at the end for losses and gradients.

    Attributes:
        dual: ||grad_k||*. dual_momentum: ||m^{k+1}||*.
        error: ||m^{k+1} - grad_k||*. error_next: ||m^{k+1} - grad_{k+1}||*.
    """

    loss: Array
    dual: Array
    dual_momentum: Array
    error: Array
    error_next: Array
    delta: Array
    gap: Array
    overshoot: Array
    gamma: Array

    def numbers(self, axis: int | None = None) -> tuple[Any, Any, Any]:
        """delta, gap and overshoot: the largest of all, or along an axis of (K, runs)."""
        return self.delta.max(axis), self.gap.max(axis), self.overshoot.max(axis)

    @property
    def least(self) -> float:
        """min_{k<K} ||grad_k||* of a single run."""
        return float(self.dual[:-1].min())


def follow(
    problem: MatrixProblem,
    ball: Ball,
    K: int,
    gamma: Step,
    alphas: Array | None = None,
    sigma: float = 0.0,
    runs: int = 1,
) -> Trace:
    """K steps of Algorithm 1 with m^0 = g^0, `runs` in parallel; Gaussian gradient noise with E||xi||_2^2 = sigma^2.

    gamma is called with the dual norm and inexactness of the first run: steps that depend on them need a single run.
    """
    generator = torch.Generator().manual_seed(0)
    x = problem.start.expand(runs, -1, -1)
    m: Tensor | None = None
    rows: list[list[Tensor]] = []
    gradient = problem.gradient(x)
    for k in range(K):
        noise = torch.randn(x.shape, generator=generator, dtype=x.dtype) * (sigma / sqrt(x[0].numel()))
        alpha = 1.0 if alphas is None else float(alphas[k])
        g = gradient + noise
        m = g if m is None else (1.0 - alpha) * m + alpha * g
        d_hat = ball(m)
        inexactness, dual_momentum, _ = assess(ball, m, d_hat, exact=True)
        dual, error, loss = ball.dual_norm(gradient), ball.dual_norm(m - gradient), problem.loss(x)
        errors = (inexactness.delta, inexactness.gap, inexactness.overshoot)
        step = gamma(k, *(float(value[0]) for value in (dual, *errors)))
        x = x + step * d_hat
        gradient = problem.gradient(x)
        error_next = ball.dual_norm(m - gradient)
        rows.append([loss, dual, dual_momentum, error, error_next, *errors, torch.full_like(dual, step)])
    columns = [torch.stack(column).numpy() for column in zip(*rows, strict=True)]
    columns[0] = np.vstack([columns[0], problem.loss(x).numpy()])
    columns[1] = np.vstack([columns[1], ball.dual_norm(gradient).numpy()])
    return Trace(*columns)


def _both(statement: str, *arguments: Any, numbers: tuple[Any, Any, Any]) -> tuple[float, float]:
    """The paper's bound, inf if delta reached 1, and the two-number bound, at (delta, gap, overshoot)."""
    delta, gap, overshoot = numbers
    paper = getattr(theory, statement)(*arguments, delta) if np.max(delta) < 1 else inf
    return paper, getattr(theory, f"measured_{statement}")(*arguments, gap, overshoot)


def deterministic(problem: MatrixProblem, ball: Ball, K: int) -> Iterator[BoundRow]:
    """Theorems 1 and 3 and Corollaries 1, 2 and 5, with full gradients."""
    D0, L = problem.initial_gap, problem.smoothness(ball)
    run = follow(problem, ball, K, lambda k, *_: sqrt(2.0 * D0 / (K * L)) / sqrt(1.0 + k))
    bounds = _both("deterministic_general", D0, L, run.gamma[:, 0], numbers=run.numbers(1))
    yield BoundRow("Theorem 1", run.least, 0.0, *bounds)
    yield from _constant(problem, ball, K, D0, L)
    paper_run, run = _adaptive(problem, ball, K, lambda dual: L)
    if paper_run:
        bound = theory.adaptive_bound(D0, L, paper_run.delta[:, 0])
        yield BoundRow("Theorem 3", paper_run.least, 0.0, bound, bound)
        bound = theory.adaptive_uniform_bound(D0, L, K, float(paper_run.delta.max()))
        yield BoundRow("Corollary 5", paper_run.least, 0.0, bound, bound)
    yield BoundRow("Theorem 3, two numbers", run.least, 0.0, *_both("adaptive_bound", D0, L, numbers=run.numbers(1)))


def _constant(problem: MatrixProblem, ball: Ball, K: int, D0: float, L: float) -> Iterator[BoundRow]:
    exact = theory.deterministic_optimal(D0, L, K, 0.0).gamma

    def bounds(run: Trace, least: float = 0.0) -> tuple[float, float, float]:
        """The left side, the paper's bound for delta >= `least`, and ours, for a run with a constant step."""
        delta, gap, nu = run.numbers()
        numbers = (max(delta, least), gap, nu)
        both = _both("deterministic_bound", D0, L, K, float(run.gamma[0, 0]), numbers=numbers)
        return float(run.dual[:-1].mean()), *both

    measured, paper, ours = bounds(follow(problem, ball, K, lambda *_: exact))
    yield BoundRow("Corollary 1", measured, 0.0, paper, ours)
    run, delta = _self_consistent(lambda d: follow(problem, ball, K, lambda *_: exact / (1.0 + d)), 0)
    if delta < 1:
        measured, _, ours = bounds(run)
        yield BoundRow("Corollary 2", measured, 0.0, theory.deterministic_optimal(D0, L, K, delta).bound, ours)
    run, nu = _self_consistent(lambda nu: follow(problem, ball, K, lambda *_: exact / nu), 2, 1.0)
    measured, paper, _ = bounds(run, nu - 1.0)
    ours = theory.measured_deterministic_optimal(D0, L, K, run.numbers()[1], nu).bound
    yield BoundRow("Corollary 2, two numbers", measured, 0.0, paper, ours)


def _self_consistent(run: Callable[[float], Trace], number: int, guess: float = 0.0) -> tuple[Trace, float]:
    """A run whose step was chosen for one of its numbers that it does not exceed, and that number.

    gamma* needs the largest delta or overshoot in advance: start from a guess and repeat with the observed maximum.
    """
    while True:
        result = run(guess)
        largest = float(result.numbers()[number])
        if largest <= guess * (1.0 + 1e-9):
            return result, guess
        guess = largest


def _adaptive(problem: MatrixProblem, ball: Ball, K: int, L: Callable[[float], float]) -> tuple[Trace | None, Trace]:
    """A run with the paper's adaptive step, None if delta reached 1, and one with the two-number step."""
    run = follow(
        problem, ball, K, lambda k, dual, delta, *_: theory.adaptive_step(L(dual), dual, delta) if delta < 1 else 0.0
    )
    ours = follow(
        problem, ball, K, lambda k, dual, delta, gap, nu: theory.measured_adaptive_step(L(dual), dual, gap, nu)
    )
    return (run if run.delta.max() < 1 else None), ours


def stochastic(problem: MatrixProblem, ball: Ball, K: int, sigma: float, runs: int, delta: float) -> Iterator[BoundRow]:
    """Theorem 2, Lemma 1 and Theorem 4 under noise; parameters from Corollary 3 at `delta`; lemmas averaged over k."""
    D0, L, rho_sigma = problem.initial_gap, problem.smoothness(ball), ball.rho((problem.n, problem.m)) * sigma
    gamma, alpha, _ = theory.stochastic_optimal(D0, L, K, rho_sigma, delta)
    gammas, alphas = np.full(K, gamma), np.full(K, alpha)
    run = follow(problem, ball, K, lambda *_: gamma, alphas, sigma, runs)
    paper, ours = _both("stochastic_bound", D0, L, K, rho_sigma, gamma, alpha, numbers=run.numbers())
    worst, gap, nu = run.numbers()
    next_bound = theory.measured_stochastic_bound_next(D0, L, K, rho_sigma, gamma, alpha, gap, nu)
    yield BoundRow("Theorem 2", *_interval(run.dual[1:].mean(0)), paper, next_bound)
    yield BoundRow("Theorem 2, k < K", *_interval(run.dual[:-1].mean(0)), ours, ours)
    errors = theory.measured_momentum_errors(L, rho_sigma, gammas, alphas, run.overshoot.max(1))
    papers = [theory.momentum_error(k, L, rho_sigma, gamma, alpha, worst) if worst < 1 else inf for k in range(K)]
    yield BoundRow("Lemma 1", *_interval(run.error.mean(0)), float(np.mean(papers)), float(errors.mean()))

    gammas, alphas = theory.agnostic_schedule(K, gamma * K**0.75, 1.0)
    run = follow(problem, ball, K, lambda k, *_: float(gammas[k]), alphas, sigma, runs)
    each, constants = run.numbers(1), (D0, L, K, rho_sigma, gamma * K**0.75, 1.0)
    errors = theory.measured_momentum_errors(L, rho_sigma, gammas, alphas, each[2])
    momentum = theory.momentum_errors(L, rho_sigma, gammas, alphas, each[0]).mean() if each[0].max() < 1 else inf
    yield BoundRow("Lemma 3", *_interval(run.error.mean(0)), momentum, errors.mean())
    # The paper's minimum is over k = 1..K, ours over k < K: both bounds hold for the larger of the two.
    measured = max(_interval(dual[dual.mean(1).argmin()]) for dual in (run.dual[1:], run.dual[:-1]))
    yield BoundRow("Theorem 4", *measured, *_both("varying_bound", D0, L, rho_sigma, gammas, alphas, numbers=each))
    yield BoundRow("Theorem 4, closed", *measured, *_both("time_varying_rate", *constants, numbers=run.numbers()))


def smooth(problem: Exponential, ball: Ball, K: int) -> Iterator[BoundRow]:
    """Theorem 5 with its adaptive step."""
    D0, (L0, L1) = problem.initial_gap, problem.local_smoothness()
    paper_run, run = _adaptive(problem, ball, K, lambda dual: L0 + L1 * dual)
    if paper_run:
        bound = theory.l0l1_bound(D0, L0, L1, K, paper_run.delta.max())
        yield BoundRow("Theorem 5", paper_run.least, 0.0, bound, bound)
    yield BoundRow("Theorem 5, two numbers", run.least, 0.0, *_both("l0l1_bound", D0, L0, L1, K, numbers=run.numbers()))


def layerwise(problem: Blocks, balls: tuple[Ball, ...], K: int) -> Iterator[BoundRow]:
    """Theorems 6 and 7, with a ball and an adaptive step per block."""
    D0, Ls = problem.initial_gap, problem.smoothness(balls)
    for two_numbers in (False, True):
        dual, delta, gap, nu, gamma = _follow_blocks(problem, balls, Ls, K, two_numbers)
        least = float((dual**2 / np.asarray(Ls)).sum(1).min())
        both = _both("layerwise_bound", D0, K, numbers=(delta.max(0), gap.max(0), nu.max(0)))
        if two_numbers:
            bound = theory.measured_layerwise_sum(D0, Ls, gamma, gap, nu)
            yield BoundRow("Theorem 6, two numbers", float((gamma * (1.0 - gap) * dual).sum()), 0.0, bound, bound)
            yield BoundRow("Theorem 7, two numbers", least, 0.0, *both)
        elif delta.max() < 1:
            bound = theory.layerwise_sum(D0, Ls, gamma, delta)
            yield BoundRow("Theorem 6", float((gamma * (1.0 - delta) * dual).sum()), 0.0, bound, bound)
            yield BoundRow("Theorem 7", least, 0.0, both[0], both[0])


def _follow_blocks(problem: Blocks, balls: tuple[Ball, ...], Ls: list[float], K: int, two_numbers: bool) -> Array:
    """dual, delta, gap, overshoot and gamma, each (K, blocks), of a run with adaptive steps."""
    x = problem.start
    table = np.empty((5, K, len(balls)))
    for k in range(K):
        for i, (g, ball, L) in enumerate(zip(problem.gradient(x), balls, Ls, strict=True)):
            d_hat = ball(g)
            inexactness, norm, _ = assess(ball, g, d_hat, exact=True)
            dual = float(norm)
            if two_numbers:
                gamma = theory.measured_adaptive_step(L, dual, inexactness.gap, inexactness.overshoot)
            else:
                gamma = theory.adaptive_step(L, dual, inexactness.delta) if inexactness.delta < 1 else 0.0
            table[:, k, i] = dual, inexactness.delta, inexactness.gap, inexactness.overshoot, gamma
            x[i] = x[i] + gamma * d_hat
    return table


def _interval(values: Array) -> tuple[float, float]:
    """Mean over the runs and half of its 95 % confidence interval."""
    return float(values.mean()), float(1.96 * values.std(ddof=1) / sqrt(len(values)))
