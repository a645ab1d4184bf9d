"""Parameters without entries are left alone by every ball, length and scale, and copies have the same attributes."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import nn

from cases import BALLS
from inexact_muon import EF21Muon, Muon, Scion, explain
from inexact_muon.lmo import Ball
from inexact_muon.optim import SCALES, LMOOptimizer, gluon, sign_sgd


@pytest.mark.parametrize("shape", [(5, 0), (0, 5), (0, 0), (3, 0, 4), (2, 5, 0)])
@pytest.mark.parametrize("ball", BALLS.values(), ids=str)
def test_nothing_divides_by_an_empty_side(ball: Ball, shape: tuple[int, ...]) -> None:
    for scale in SCALES:
        for length in ("fixed", "steepest"):
            empty, full = nn.Parameter(torch.zeros(shape)), nn.Parameter(torch.eye(3))
            groups = [{"params": [empty, full], "view": "whole"}]
            optimizer = LMOOptimizer(groups, 0.1, 0.9, ball=ball, length=length, scale=scale, sample_every=1)
            for _ in range(2):
                empty.grad, full.grad = torch.zeros(shape), torch.eye(3)
                optimizer.step()
            assert not torch.equal(full, torch.eye(3))
            assert optimizer.stats()["0"]["step"] == 2
            str(explain(optimizer))


def matrix() -> list[nn.Parameter]:
    return [nn.Parameter(torch.eye(4))]


MADE: dict[str, Callable[[], LMOOptimizer]] = {
    "muon": lambda: Muon(matrix()),
    "for_model": lambda: Muon.for_model(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)), 0.1),
    "scion": lambda: Scion(matrix()),
    "sign": lambda: sign_sgd(matrix(), 0.1),
    "gluon": lambda: gluon(matrix(), 1.0, 1.0),
    "ef21": lambda: EF21Muon(matrix()),
}


@pytest.mark.parametrize("made", MADE.values(), ids=MADE)
@pytest.mark.parametrize("again", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))], ids=["deepcopy", "pickle"])
def test_copies_have_the_same_attributes(
    made: Callable[[], LMOOptimizer], again: Callable[[LMOOptimizer], LMOOptimizer]
) -> None:
    optimizer = made()
    plain = torch.optim.AdamW(matrix())
    torchs = set(vars(copy.deepcopy(plain))) ^ set(vars(plain))  # what torch itself adds or drops
    assert set(vars(again(optimizer))) ^ set(vars(optimizer)) <= torchs
