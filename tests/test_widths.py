"""The coordinate check: exponents of the width are those of the update, and the verdict follows from them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from inexact_muon import Muon, explain
from inexact_muon_lab.tune import Widths, widths

SIZES = (16, 32, 64, 128)
X, Y = torch.randn(64, 8, generator=torch.Generator().manual_seed(0)), torch.arange(64) % 4


class Net(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.into, self.hidden, self.out = nn.Linear(8, width), nn.Linear(width, width), nn.Linear(width, 4)
        nn.init.zeros_(self.out.weight)  # of usual size it would turn aligned changes into ones that grow

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.out(torch.relu(self.hidden(torch.relu(self.into(x)))))
        return result


def loss(model: nn.Module) -> torch.Tensor:
    return nn.functional.cross_entropy(model(X), Y)


def checked(scale: str, **options: Any) -> Widths:
    def optimizer(model: nn.Module) -> Muon:
        return Muon.for_model(model, lr=0.05, adjust_lr_fn=scale, rules=[("*.weight", "lmo")], adamw={"lr": 1e-6})

    return widths(Net, SIZES, loss, optimizer, **options)


def test_sqrt_out_over_in_carries_over_and_matched_rms_does_not() -> None:
    spectral, matched = checked("spectral"), checked("match_rms_adamw")
    assert spectral.carries_over
    assert spectral.verdict.startswith("the learning rate carries over from width 16 to 128")
    assert not matched.carries_over
    assert "does not carry over" in matched.verdict
    assert matched.slopes["hidden"] > 0.25
    assert matched.slopes["out"] > 0.25


def test_adamw_of_the_output_layer_is_what_does_not_carry_over() -> None:
    def optimizer(model: nn.Module) -> Muon:
        return Muon.for_model(model, lr=0.02, adjust_lr_fn="spectral", adamw={"lr": 0.02})

    found = widths(Net, SIZES, loss, optimizer)
    assert "the change of out goes like" in found.verdict


def test_the_slope_is_the_exponent() -> None:
    rows = {"a": tuple(((0.0, 3.0 * n**0.5)) for n in SIZES), "b": tuple((1.0, 2.0) for _ in SIZES)}
    found = Widths(SIZES, rows)
    assert found.slopes == pytest.approx({"a": 0.5, "b": 0.0}, abs=1e-12)
    assert "the change of a goes like width^+0.50;" in found.verdict
    nothing = Widths(SIZES, {"a": tuple((0.0,) for _ in SIZES)})
    assert math.isnan(nothing.slopes["a"])
    assert not nothing.carries_over
    assert nothing.verdict.startswith("not known: the output of a did not change")


def test_it_repeats_and_leaves_the_random_state_alone() -> None:
    before = torch.get_rng_state()
    first, second = checked("spectral", seeds=(3,), steps=2), checked("spectral", seeds=(3,), steps=2)
    assert first == second
    assert torch.equal(torch.get_rng_state(), before)


def test_the_picture_has_every_layer_and_width() -> None:
    pytest.importorskip("altair")
    chart = checked("spectral", seeds=(0,), steps=1).plot().to_dict()
    points = chart["data"]["values"]
    assert {(p["layer"], p["width"]) for p in points} == {(n, w) for n in ("into", "hidden", "out") for w in SIZES}


def test_one_width_is_refused() -> None:
    with pytest.raises(ValueError, match="needs two widths"):
        widths(Net, (16,), loss, lambda model: Muon.for_model(model, lr=0.1))


def test_whose_spectral_it_is_is_said() -> None:
    model = Net(16)
    assert "unit_rms_norm" in str(explain(Muon.for_model(model, lr=0.1, adjust_lr_fn="spectral")))
    assert "unit_rms_norm" not in str(explain(Muon.for_model(model, lr=0.1)))
    with pytest.raises(
        ValueError, match=r"'unit_rms_norm' of other libraries is 'spectral' here; .*sqrt\(max\(out, in\)\)"
    ):
        Muon.for_model(model, lr=0.1, adjust_lr_fn="unit_rms_norm")
    with pytest.raises(ValueError, match=r"did you mean 'spectral'\? .*sqrt\(out/in\) here"):
        Muon.for_model(model, lr=0.1, adjust_lr_fn="spectrl")
