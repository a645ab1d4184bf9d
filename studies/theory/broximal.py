"""The ball-proximal point method, which an LMO step linearises. For small convex problems.

x+ = argmin {f(z) : norm(z - x) <= t}. An LMO step minimises <grad f(x), z> over the same ball instead; so f(x+) is at
most f(x + t d) for every d of the ball. For convex f with minimiser x*, the point of the ball towards x* gives, in any
norm, f(x+) - f* <= (1 - t/norm(x* - x)) (f(x) - f*) while norm(x* - x) > t, and f(x+) = f* after that: finitely many
steps.
"""

from __future__ import annotations

import torch
from torch import Tensor

from inexact_muon.lmo import Ball, Euclidean
from inexact_muon_lab.problems.matrix import MatrixProblem, plain


def project(ball: Ball, x: Tensor, radius: float) -> Tensor:
    """Euclidean projection of x onto the ball of this radius."""
    name = plain(ball).name
    if name == "spectral":
        u, s, vh = torch.linalg.svd(x, full_matrices=False)
        return (u * s.clamp(max=radius).unsqueeze(-2)) @ vh
    if name == "sign":
        return x.clamp(-radius, radius)
    if name == "euclidean":
        return x * min(1.0, radius / max(float(torch.linalg.vector_norm(x)), 1e-300))
    raise ValueError(f"no projection is known here for the ball {name}: use spectral, sign or euclidean")


def broximal_step(
    problem: MatrixProblem, ball: Ball, x: Tensor, radius: float, tolerance: float = 1e-12, most: int = 20000
) -> Tensor:
    """argmin of f over the ball of this radius around x, by accelerated projected gradient with restarts.

    Stops if a step of length 1/L moves by less than `tolerance`; L is that of the Euclidean norm.

    Raises:
        RuntimeError: not converged after `most` iterations.
    """
    step = 1.0 / problem.smoothness(Euclidean())
    z = last = x
    inertia = 1.0
    for _ in range(most):
        new = x + project(ball, z - step * problem.gradient(z) - x, radius)
        if float(torch.linalg.vector_norm(new - z)) <= tolerance:
            return new
        faster = (1.0 + (1.0 + 4.0 * inertia**2) ** 0.5) / 2.0
        if float(((z - new) * (new - last)).sum()) > 0.0:  # the momentum is an ascent direction: restart
            faster, inertia = 1.0, 1.0
        z = new + (inertia - 1.0) / faster * (new - last)
        last, inertia = new, faster
    raise RuntimeError(
        f"the ball-proximal step did not converge to {tolerance} in {most} iterations; the problem may be too flat"
    )
