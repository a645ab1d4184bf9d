"""One number has one name and one value: explain, delta, inexactness(), logging and advise agree on a matrix.

And the answer to "which oracle": three lines, for optimizers of this library and of others.
"""

from __future__ import annotations

import json
from math import isfinite
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from commands import said
from inexact_muon import Muon, advise, explain, lmo, measure, plot, polar
from inexact_muon.optim import flat_stats
from inexact_muon_lab.tune.advice import text
from inexact_muon_lab.tune.plotting import save
from matrices import orthonormal
from torch_features import HAS_MUON, NO_MUON

SPECTRA = {
    "flat": torch.linspace(1.0, 0.5, 96),
    "power law": 1.0 / torch.arange(1.0, 97.0) ** 2,
    "rank-deficient": torch.cat((torch.linspace(1.0, 0.5, 48), torch.full((48,), 1e-9))),
}
NAMES = ("gap", "overshoot", "lifted")


def with_spectrum(values: Tensor, n: int, m: int) -> Tensor:
    """An n x m matrix with these n singular values."""
    return (orthonormal(n, n, 0) * values) @ orthonormal(m, n, 1).mT


def stepped(m: Tensor, oracle: str = "polar-express:5", **options: Any) -> Muon:
    """After one step whose momentum is m."""
    p = nn.Parameter(torch.zeros_like(m))
    optimizer = Muon([("w", p)], 0.02, nesterov=False, momentum=0.0, polar=oracle, sample_every=1, **options)
    p.grad = m.clone()
    optimizer.step()
    return optimizer


@pytest.mark.parametrize("oracle", ["polar-express:5", "jordan:5", "zolotarev(poles=1, polish=9)", "exact-svd"])
@pytest.mark.parametrize("name", SPECTRA)
def test_one_matrix_has_the_same_numbers_in_all_places(name: str, oracle: str, tmp_path: Path) -> None:
    m = with_spectrum(SPECTRA[name].double(), 96, 160).float()
    optimizer = stepped(m, oracle)
    torch.save(optimizer.state_dict(), tmp_path / "c.pt")
    _, out, _ = said("delta", "--checkpoint", str(tmp_path / "c.pt"), "--json")
    command = json.loads(out)["layers"][0]
    line, stats = explain(optimizer).lines[0].inexactness, flat_stats(optimizer, every=True)
    answer = optimizer.advice().in_use
    ball = lmo.Spectral(polar=polar.parse(oracle))
    exact = measure(ball, m, ball(m), exact=True)
    for key in NAMES:
        values = [getattr(found, key) for found in (optimizer.inexactness()["w"], line, answer)]
        values += [command[key], stats[f"optimizer/w/{key}"], stats[f"optimizer/{key}/worst"]]
        assert values == pytest.approx([getattr(exact, key)] * len(values), abs=2e-3), key  # of rounding in float32


def test_three_spectra_are_told_apart() -> None:
    """A flat one is lifted whole; of a power law directions with descent are not lifted; of a rank-deficient one half
    of the directions are there, and these are lifted."""
    found = {
        name: stepped(with_spectrum(s.double(), 96, 160).float()).inexactness()["w"] for name, s in SPECTRA.items()
    }
    assert found["flat"].lifted == 1.0
    assert found["power law"].lifted < 0.95
    assert found["rank-deficient"].lifted == 0.5
    assert found["power law"].delta > 0.8
    assert max(found[name].delta for name in ("flat", "rank-deficient")) < 0.2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("smallest", [1e-4, 1e-6, 1e-9])
def test_what_products_cannot_see_is_measured(dtype: torch.dtype, smallest: float) -> None:
    values = torch.cat((torch.logspace(0, -1, 64), torch.full((64,), smallest))).double()
    m = with_spectrum(values, 128, 512).to(dtype)
    ball = lmo.Spectral(polar=polar.parse("zolotarev(poles=1, polish=9)"))
    estimated, exact = measure(ball, m, ball(m)), measure(ball, m, ball(m), exact=True)
    assert estimated.delta == pytest.approx(exact.delta, abs=2e-3)
    assert estimated.lifted == exact.lifted == 0.5


@pytest.mark.slow
@pytest.mark.parametrize("oracle", ["polar-express:5", "polar-express:3", "jordan:5"])
def test_the_share_of_lifted_directions_is_estimated_from_products(oracle: str) -> None:
    m = with_spectrum(torch.logspace(0, -3.5, 512).double(), 512, 640).float()
    ball = lmo.Spectral(polar=polar.parse(oracle))
    estimated, exact = measure(ball, m, ball(m)), measure(ball, m, ball(m), exact=True)
    assert estimated.lifted == pytest.approx(exact.lifted, abs=0.08)


# the answer -----------------------------------------------------------------------------------------------------------


class Foreign(torch.optim.Optimizer):
    """Keeps an average under this key, as other packages do, and names no oracle."""

    def __init__(self, params: Any, key: str, **options: Any) -> None:
        super().__init__(params, {"lr": 0.02, **options})
        self.key = key

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p][self.key] = p.grad.clone()


def test_a_good_oracle_is_kept_and_a_bad_one_named_with_its_layers() -> None:
    m = with_spectrum(SPECTRA["power law"].double(), 96, 160).float()
    good, bad = stepped(m, "auto").advice(), stepped(m, "jordan:5").advice()
    assert good.exact_enough
    assert good.lines[0].startswith("Exact enough: ")
    assert good.lines[1].startswith("Keep it")
    assert not bad.exact_enough
    assert bad.lines[0].startswith("jordan(steps=5) loses ")
    assert "most in w (" in bad.lines[0]
    assert bad.oracle is not None
    assert bad.lr == 0.02
    assert f'Use polar="{text(bad.oracle)}" with lr {0.02 * bad.lr_factor:.3g} ' in bad.lines[1]
    assert all(line.count("\n") == 0 for line in bad.lines)
    assert str(explain(stepped(m, "jordan:5"))).rstrip().endswith(str(bad))


@pytest.mark.parametrize("key", ["momentum_buffer", "momentum"])
def test_live_optimizers_of_others_get_an_answer(key: str) -> None:
    p = nn.Parameter(torch.zeros(32, 48))
    p.grad = torch.randn(32, 48, generator=torch.Generator().manual_seed(0))
    optimizer = Foreign([p], key)
    with pytest.raises(ValueError, match=r"no momentum matrix yet: call optimizer\.step\(\) first"):
        advise(optimizer)
    optimizer.step()
    assert advise(optimizer).lines[0].startswith("The oracle in use is not named by the optimizer")
    assert advise(optimizer, "jordan:5").in_use is not None
    aside = Foreign([p], "momentum", algorithm="adamw")
    aside.step()
    with pytest.raises(ValueError, match="no momentum matrix"):
        advise(aside)


def test_what_has_no_momentum_matrix_is_one_sentence() -> None:
    model = nn.Linear(4, 3)
    adamw = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 4)).sum().backward()
    adamw.step()
    for wrong, kind in ((adamw, "AdamW"), (adamw.state_dict(), "dict"), ({}, "dict")):
        with pytest.raises(ValueError, match=f"^{kind} has no momentum matrix of a Muon"):
            advise(wrong)
    for wrong, kind in ((model, "Linear"), (3, "int"), (list(model.parameters()), "list"), (None, "NoneType")):
        with pytest.raises(TypeError, match=f"^advise needs an optimizer, its state_dict .*, got {kind}$"):
            advise(wrong)


def test_torch_and_keller_jordan_are_known() -> None:
    p = nn.Parameter(torch.zeros(32, 48))
    p.grad = torch.randn(32, 48, generator=torch.Generator().manual_seed(0))
    if not HAS_MUON:
        pytest.skip(NO_MUON)
    for optimizer in (torch.optim.Muon([p]), pytest.importorskip("muon").SingleDeviceMuon([p])):
        optimizer.step()
        assert advise(optimizer).reports[0].oracle == polar.Jordan(5)


def test_one_oracle_for_all_layers() -> None:
    """Layers with different spectra and shapes get one text to paste."""
    named = [(f"layers.{i}.{kind}", s) for i in range(3) for kind, s in SPECTRA.items()]
    params = [(name, nn.Parameter(torch.zeros(96, 100 + i))) for i, (name, _) in enumerate(named)]
    optimizer = Muon(params, polar="jordan:5")
    for (_, p), (_, s) in zip(params, named, strict=True):
        p.grad = with_spectrum(s.double(), 96, p.shape[1]).float()
    optimizer.step()
    found = optimizer.advice()
    assert found.chosen is not None
    assert len(found.chosen.each) == 9
    assert found.lines[1].count("polar=") == 1


def test_two_oracles_in_use_are_said_to_be_two() -> None:
    optimizer = Muon([nn.Parameter(torch.zeros(48, 48)), nn.Parameter(torch.zeros(64, 160))], polar="auto")
    for p in optimizer.param_groups[0]["params"]:
        p.grad = with_spectrum(torch.linspace(1.0, 0.5, p.shape[0]).double(), *p.shape).float()
    optimizer.step()
    assert optimizer.advice().lines[0].startswith("Exact enough: the 2 oracles in use lose nothing of the descent and ")


def test_a_row_of_explain_is_the_row_of_delta_for_the_parts_of_a_fused_weight(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential()
    model.add_module("attention", nn.MultiheadAttention(24, 2, bias=False))
    optimizer = Muon.for_model(model, lr=0.02, polar="jordan:5")
    for p, scale in zip(model.parameters(), (1e-2, 1.0), strict=True):
        p.grad = torch.randn(p.shape) * scale
        p.grad[: p.shape[0] // 3] @= torch.diag(torch.logspace(0, -3, p.shape[1]))
    optimizer.step()
    torch.save(optimizer.state_dict(), tmp_path / "c.pt")
    _, out, _ = said("delta", "--checkpoint", str(tmp_path / "c.pt"), "--json")
    layers = [row for row in json.loads(out)["layers"] if "in_proj" in row["name"]]
    line = next(line for line in explain(optimizer).lines if "in_proj" in line.parameter)
    assert len(layers) == 3
    assert line.inexactness is not None
    assert line.inexactness.gap == pytest.approx(max(row["gap"] for row in layers), abs=1e-6)
    assert line.inexactness.lifted == pytest.approx(min(row["lifted"] for row in layers), abs=1e-6)


def test_the_reason_says_where_it_does_not_hold() -> None:
    """Five Polar Express steps are what the tolerances come from; on this momentum they are outside of them."""
    answer = stepped(with_spectrum(torch.logspace(0, -5, 96).double() + 1e-3, 96, 160).float(), "exact-svd").advice()
    five = next(one for one in answer.candidates if one.oracle == polar.PolarExpress(5))
    within = sum(i.gap <= 0.05 and i.overshoot <= 1.15 for i in five.each)
    claimed = "which is within this" in answer.lines[2]
    assert claimed == (within == 1)


def test_parameters_without_names_are_called_parameters() -> None:
    p = nn.Parameter(torch.zeros(96, 160))
    optimizer = Foreign([p], "momentum_buffer")
    p.grad = with_spectrum(SPECTRA["power law"].double(), 96, 160).float()
    optimizer.step()
    assert "most in parameter 0 (" in advise(optimizer, "jordan:5").lines[0]
    assert "overshoot in the one matrix, " in advise(optimizer, "auto").lines[2]


def test_every_fourth_parameter_without_a_name_is_a_short_name() -> None:
    params = [nn.Parameter(torch.zeros(96, 160 if i % 4 == 0 else 100)) for i in range(20)]
    optimizer = Foreign(params, "momentum_buffer")
    for p in params:
        p.grad = with_spectrum(SPECTRA["power law"].double(), *p.shape).float()
    optimizer.step()
    assert "parameters 0,4,...,16 (" in advise(optimizer, "jordan:5").lines[0]


def test_scalars_for_logs_are_finite_when_a_bias_starts_at_zero() -> None:
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
    for module in model:
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)
    optimizer = Muon.for_model(model, lr=0.02, sample_every=1)
    model(torch.randn(8, 16)).square().mean().backward()
    optimizer.step()
    stats = flat_stats(optimizer)
    assert "optimizer/update_ratio/largest" in stats
    assert all(isfinite(value) for value in stats.values())


@pytest.mark.slow
def test_the_plot_has_a_panel_a_kind_and_the_answer(tmp_path: Path) -> None:
    pytest.importorskip("altair")
    m = with_spectrum(SPECTRA["power law"].double(), 96, 160).float()
    chart = plot(stepped(m, "jordan:5")).to_dict()
    assert len(chart["concat"]) == 1
    assert chart["title"]["text"][1].startswith("Use polar=")
    curves = {v["curve"] for v in chart["concat"][0]["layer"][1]["data"]["values"]}
    assert curves == {"s / largest s", "f(s), in use", "f(s), recommended"}
    kept = plot(stepped(m, "auto")).to_dict()["concat"][0]["layer"][1]
    assert {v["curve"] for v in kept["data"]["values"]} == {"s / largest s", "f(s), in use"}, "one that is kept, once"
    assert kept["encoding"]["color"]["scale"]["domain"] == ["s / largest s", "f(s), in use"]
    p = nn.Parameter(torch.zeros_like(m))
    p.grad = m
    foreign = Foreign([p], "momentum")
    foreign.step()
    save(advise(foreign), tmp_path / "momentum.svg")
    assert (tmp_path / "momentum.svg").read_text().startswith("<svg")
    with pytest.raises(ValueError, match=r"writes \.svg"):
        save(advise(foreign), tmp_path / "momentum.gif")
