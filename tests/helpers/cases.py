"""THE tables: everything under test. Property files run over them; a test fails if one is incomplete."""

from __future__ import annotations

import torch

from inexact_muon import lmo, polar
from inexact_muon_lab.experiments import shapes

POLARS: dict[str, polar.PolarMethod] = {
    str(method): method
    for method in (
        *(polar.NewtonSchulz(5, degree=degree) for degree in (3, 5, 7, 9)),
        polar.NewtonSchulz(12),
        polar.Jordan(1),
        polar.Jordan(5),
        polar.You(5),
        polar.You(6),
        polar.Cesista(5),
        *(polar.PolarExpress(steps) for steps in (1, 2, 5, 8)),
        polar.PolarExpress(5, normalise="frobenius"),
        polar.PolarExpress(6, lower=1e-2, degree=3, safety=1.05, cushion=0.02),
        polar.PolarExpress(4, degree=(3, 9, 9, 9)),
        polar.PolarExpress(5, lower=3e-3, power=-0.2),
        polar.Cans(5),
        polar.Cans(4, degree=7),
        polar.Cans(6, normalise="frobenius"),
        polar.Zolotarev(1),
        polar.Zolotarev(3),
        polar.Zolotarev(8, lower=1e-5),
        polar.Zolotarev(1, polish=9),
        polar.Zolotarev(1, lower=1e-2, polish=5),
        polar.Zolotarev(3, lower=2e-3, power=-0.1),
        polar.Zolotarev(2, lower=1e-2, power=0.3),
        polar.Polynomial(((1.5, -0.5), (1.5, -0.5))),
        polar.Polynomial(((2.5, -3.0, 2.0, -0.6, 0.1, -0.01, 0.0005),)),
        polar.ExactSVD(),
        polar.Shaped(),
        polar.Shaped((shapes.power(0.25), shapes.top(1.5, 0.3), shapes.contra(0.2))),
        polar.Shaped((shapes.ripple(0.1, 6.0), shapes.floor(0.02, 0.4, 0.3))),
        polar.Shaped((shapes.floor(0.004, 0.3), shapes.dip(0.5, 0.1, 0.7), shapes.clip(0.0007))),
    )
}

BALLS: dict[str, lmo.Ball] = {
    str(ball): ball
    for ball in (
        lmo.Spectral(polar=polar.ExactSVD()),
        lmo.Spectral(polar=polar.ExactSVD(), scale="rms"),
        lmo.Spectral(polar=polar.ExactSVD(), scale="rms-max"),
        lmo.Sign(),
        lmo.Sign(scale="rms"),
        lmo.Euclidean(),
        lmo.Euclidean(scale="rms"),
        lmo.ColNorm(),
        lmo.ColNorm(scale="rms"),
        lmo.RowNorm(),
        lmo.RowNorm(scale="rms"),
        lmo.Nuclear(steps=400),
    )
}
"""Every ball, with an exact oracle."""

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
SHAPES = ((24, 24), (16, 40), (40, 16), (1, 9), (9, 1), (20, 25))
