"""Expected routes in a compact notation: a pattern of parameter names -> what they get.

"adamw" has no weight decay, "adamw decay" has. The LMO is written as view, matrices and scale:
"split(rows=3) 3*32x32 @1". A question mark at the end says that the route is unsure.
"""

from __future__ import annotations

import re
from itertools import groupby
from math import sqrt

import torch
from torch import Tensor, nn

from inexact_muon import Muon
from inexact_muon.optim import Route, routes
from inexact_muon.views import View

Expected = dict[str, str]


def described(route: Route) -> str:
    """The notation of a route."""
    if route.algorithm == "adamw":
        text = "adamw decay" if route.decay else "adamw"
    else:
        shapes = route.view.shapes(route.parameter.shape)
        assert route.decay, route.name
        text = f"{route.view} {matrices(shapes)} @{scale(shapes[0]):.3g}"
    return text if route.sure else f"{text} ?"


def matrices(shapes: list[tuple[int, ...]]) -> str:
    """Such as 3*32x32 or 32x16+8x16."""
    parts = [("x".join(map(str, shape)), len(list(same))) for shape, same in groupby(shapes)]
    return "+".join(f"{count}*{text}" if count > 1 else text for text, count in parts)


def scale(shape: tuple[int, ...]) -> float:
    """Keller Jordan's factor."""
    return sqrt(max(1.0, shape[-2] / shape[-1]))


def check(model: nn.Module, expected: Expected) -> None:
    """Every parameter is named by exactly one pattern and gets what it says; no pattern is left over."""
    used = set()
    wrong = []
    for route in routes(model):
        named = [pattern for pattern in expected if re.fullmatch(pattern, route.name)]
        assert len(named) == 1, (route.name, tuple(route.parameter.shape), named, described(route))
        used.add(named[0])
        if described(route) != expected[named[0]]:
            wrong.append((route.name, described(route), expected[named[0]], route.why))
    assert not wrong
    assert used == set(expected), set(expected) - used


def check_step(model: nn.Module) -> None:
    """One step with an exact oracle: the norm of every matrix of the update is its scale."""
    made = {route.name: route for route in routes(model)}
    optimizer = Muon.for_model(model, 1.0, polar="exact-svd", weight_decay=0.0, momentum=0.0, nesterov=False)
    generator, before = torch.Generator().manual_seed(0), {}
    for name, p in model.named_parameters():
        before[name] = p.detach().clone()
        p.grad = torch.randn(p.shape, generator=generator, dtype=p.dtype)
        with torch.no_grad():
            p.zero_()
    optimizer.step()
    for name, p in model.named_parameters():
        if name in made and made[name].algorithm == "lmo":
            _check_update(name, made[name].view, -p.detach())
        with torch.no_grad():
            p.copy_(before[name])


def _check_update(name: str, view: View, update: Tensor) -> None:
    for matrix in view.cut(update):
        norms = torch.linalg.matrix_norm(matrix.double(), 2)
        expected = torch.full_like(norms, scale(tuple(matrix.shape)))
        torch.testing.assert_close(norms, expected, rtol=1e-4, atol=1e-4, msg=lambda text: f"{name}: {text}")
