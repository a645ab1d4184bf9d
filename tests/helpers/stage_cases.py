"""Stages under test, and their equations written out: one matrix at a time, in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn

from inexact_muon import Muon, lmo
from inexact_muon.views import parse as parse_view

ORACLE = "polar-express(dtype=float64)"
LR, MU, BETA, EPS = 0.05, 0.8, 0.9, 1e-6

CASES: dict[str, dict[str, Any]] = {
    "second moment": {"before": f"second-moment(beta2={BETA}, eps={EPS})"},
    "sign": {"before": "sign"},
    "row moment": {"after": f"row-moment(beta2={BETA}, eps={EPS})"},
    "longer moment": {"after": f"row-moment(beta2={BETA}, eps={EPS}, side=longer)"},
    "entry moment": {"after": f"entry-moment(beta2={BETA}, eps={EPS})"},
    "rms": {"after": "rms:0.3"},
    "cautious": {"decay": "cautious", "weight_decay": 0.5},
    "independent": {"decay": "independent", "weight_decay": 0.02},
    "cautious independent": {"decay": "cautious-independent", "weight_decay": 0.02},
    "fixed norm": {"fixed_norm": True, "weight_decay": 0.0},
    "adamuon": {"before": "sign", "after": f"entry-moment(beta2={BETA}, eps={EPS}) + rms:0.2"},
    "rows on spheres": {
        "before": f"second-moment(beta2={BETA}, eps={EPS})",
        "after": f"row-moment(beta2={BETA}, eps={EPS})",
        "fixed_norm": True,
        "weight_decay": 0.0,
    },
}
"""Name -> options of `Muon`."""

VIEWED: tuple[tuple[tuple[int, ...], str], ...] = (
    ((12, 8), "whole"),
    ((8, 12), "whole"),
    ((2, 9), "whole"),
    ((3, 4, 7), "whole"),
    ((12, 6), "split:3"),
    ((12, 5), "split(rows=(2, 1), groups=4)"),
    ((5, 12), "transposed"),
    ((12, 5), "stacked(count=3, transposed=True)"),
    ((12, 5), "stacked(count=3)"),
    ((4, 3, 2, 2), "flatten"),
    ((4, 3, 2, 2), "flatten(groups=2, transposed=True)"),
)
"""(shape of a parameter, its view)"""

ALL = tuple(range(len(VIEWED)))
CONSECUTIVE = tuple(k for k, (_, view) in enumerate(VIEWED) if view == "whole" or view.startswith("split:"))
"""Those whose matrices are consecutive in memory: rows of several lengths can be lines of one stack."""

STEPS = 4


def draws(seed: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape, _ in VIEWED]


def optimizer_of(params: Sequence[Any], only: Sequence[int] = ALL, **options: Any) -> Muon:
    groups = [{"params": [p], "view": VIEWED[k][1]} for p, k in zip(params, only, strict=True)]
    return Muon(groups, LR, **{"momentum": MU, "polar": ORACLE, "weight_decay": 0.1, **options})


def trained(
    place: Callable[[Tensor], Any], dtype: torch.dtype = torch.float64, only: Sequence[int] = ALL, **options: Any
) -> tuple[Any, Muon]:
    """(some of the parameters after some steps, their optimizer); `place` lays a whole tensor out."""
    params = [nn.Parameter(place(draws(0, dtype)[k])) for k in only]
    optimizer = optimizer_of(params, only, **options)
    for step in range(STEPS):
        gradients = draws(1 + step, dtype)
        for p, k in zip(params, only, strict=True):
            p.grad = place(gradients[k])
        optimizer.step()
    return params, optimizer


@dataclass
class Matrix:
    """One matrix and its states: the equations, one after another."""

    w: Tensor

    def __post_init__(self) -> None:
        zero = torch.zeros_like(self.w)
        self.m, self.v, self.entries, self.rows = zero, zero, zero, 0.0
        self.radius = self.w.norm()

    def step(self, g: Tensor, case: dict[str, Any]) -> None:
        before, after, decay = (case.get(key, "") for key in ("before", "after", "decay"))
        self.m = MU * self.m + (1 - MU) * g
        m = MU * self.m + (1 - MU) * g  # Nesterov
        if "second-moment" in before:
            self.v = BETA * self.v + (1 - BETA) * g**2
            m = m / (self.v.sqrt() + EPS)
        if "sign" in before:
            m = m.sign()
        z = -lmo.Spectral(polar=ORACLE_VALUE)(m)
        if "row-moment" in after:
            mean_over = 0 if "longer" in after and z.shape[0] < z.shape[1] else 1
            self.rows = BETA * self.rows + (1 - BETA) * (z**2).mean(mean_over, keepdim=True)
            divided = z / (self.rows.sqrt() + EPS)
            z = divided * z.norm() / divided.norm()
        if "entry-moment" in after:
            self.entries = BETA * self.entries + (1 - BETA) * z**2
            z = z / (self.entries.sqrt() + EPS)
        if "rms" in after:
            rms = float(after.rpartition("rms:")[2])
            z = rms * sqrt(z.numel()) * z / z.norm()
        if case.get("fixed_norm"):
            moved = self.w - LR * self.radius * z / z.norm()
            self.w = self.radius * moved / moved.norm()
            return
        out, into = z.shape
        share = case.get("weight_decay", 0.1) * (1.0 if "independent" in decay else LR)
        where = (self.w * z >= 0).to(z) if "cautious" in decay else torch.ones_like(z)
        self.w = self.w - share * where * self.w - LR * sqrt(max(1.0, out / into)) * z


ORACLE_VALUE = lmo.parse(f"spectral(polar={ORACLE})").polar  # type: ignore[attr-defined]


def written_out(case: dict[str, Any]) -> list[Tensor]:
    """Whole parameters after the same steps, by the equations."""
    found = []
    for i, (shape, name) in enumerate(VIEWED):
        view = parse_view(name)
        matrices = [[Matrix(x.clone()) for x in part.reshape(-1, *part.shape[-2:])] for part in view.cut(draws(0)[i])]
        for step in range(STEPS):
            for part, g in zip(matrices, view.cut(draws(1 + step)[i]), strict=True):
                for matrix, x in zip(part, g.reshape(-1, *g.shape[-2:]), strict=True):
                    matrix.step(x, case)
        parts = [
            torch.stack([x.w for x in part]).reshape(s) for part, s in zip(matrices, view.shapes(shape), strict=True)
        ]
        found.append(view.join(parts, shape))
    return found
