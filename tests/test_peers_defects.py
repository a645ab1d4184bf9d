"""Defects that were seen in other packages, one test each: none of them may come back here."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from inexact_muon import Muon, explain, lmo, measure, polar
from inexact_muon.optim import SCALES, routes
from matrices import matrix


@pytest.mark.parametrize("nesterov", [True, False])
def test_the_oracle_does_not_write_into_the_momentum(nesterov: bool) -> None:
    """torch.optim.Muon 2.13 and pytorch_optimizer: in bfloat16 without Nesterov the buffer becomes the polar factor."""
    p = nn.Parameter(torch.zeros(16, 24, dtype=torch.bfloat16))
    p.grad = 100.0 * torch.randn(16, 24, generator=torch.Generator().manual_seed(0)).bfloat16()
    optimizer = Muon([p], momentum=0.5, nesterov=nesterov)
    optimizer.step()
    torch.testing.assert_close(optimizer.state[p]["momentum_buffer"], 0.5 * p.grad)


def test_a_scale_does_what_its_name_says() -> None:
    """pytorch_optimizer: use_adjusted_lr=True gives the original scale and False Moonlight's."""
    assert SCALES["original"](400, 100) == 2.0
    assert SCALES["original"](100, 400) == 1.0
    assert SCALES["match_rms_adamw"](100, 400) == 4.0
    p = nn.Parameter(torch.zeros(100, 400))
    p.grad = torch.randn(100, 400, generator=torch.Generator().manual_seed(0))
    Muon([p], lr=1.0, weight_decay=0.0, polar="exact-svd", adjust_lr_fn="match_rms_adamw").step()
    assert float(p.detach().square().mean().sqrt()) == pytest.approx(0.2, rel=1e-3)


def test_a_head_is_found_by_its_full_name() -> None:
    """pytorch_optimizer looks for 'head' in the local name of a parameter, which is 'weight'."""
    model = nn.ModuleDict({"body": nn.Linear(8, 8), "head": nn.Linear(8, 12), "tail": nn.Linear(12, 5)})
    found = {route.name: route.algorithm for route in routes(model)}
    assert found["body.weight"] == "lmo"
    assert found["head.weight"] == "adamw"


@pytest.mark.parametrize("method", [polar.PolarExpress(5), polar.PolarExpress(5, form="gram"), polar.Zolotarev(3)])
def test_inputs_are_not_changed(method: polar.PolarMethod) -> None:
    """gram-newton-schulz 0.1.5 normalises a float32 input in place."""
    m = 7.0 * matrix(12, 40, "gaussian", seed=0, dtype=torch.float32)
    before = m.clone()
    method(m)
    assert torch.equal(m, before)


@pytest.mark.parametrize(("cls", "most"), [(polar.You, 6), (polar.Cesista, 5)])
def test_lists_do_not_start_again(cls: type[polar.PolarMethod], most: int) -> None:
    """Emerging-Optimizers cycles through a list when asked for more steps than it has."""
    with pytest.raises(ValueError, match="steps"):
        cls(most + 1)  # type: ignore[call-arg]


@pytest.mark.parametrize("method", [polar.PolarExpress, polar.Cans])
def test_more_steps_are_never_worse(method: type[polar.PolarMethod]) -> None:
    """Emerging-Optimizers' cans stalls at its last polynomial."""
    errors = [method(steps).error_bound(1e-3) for steps in range(1, 10)]  # type: ignore[call-arg]
    assert all(later <= earlier for earlier, later in pairwise(errors))
    assert errors[-1] < 1e-6


@pytest.mark.parametrize("shape", [(24, 24), (24, 60), (60, 24)])
@pytest.mark.parametrize("text", ["exact-svd", "polar-express:8"])
def test_the_chosen_oracle_runs_on_every_shape(shape: tuple[int, int], text: str) -> None:
    """HeavyBall takes its own Newton-Schulz for matrices that are not square, whatever was asked."""
    p = nn.Parameter(torch.zeros(shape))
    p.grad = matrix(*shape, "log-uniform-1e-3", seed=2, dtype=torch.float32)
    Muon([p], lr=1.0, weight_decay=0.0, adjust_lr_fn="none", polar=text).step()
    assert measure(lmo.Spectral(), p.grad, p.detach(), exact=True).delta < 0.01


@pytest.mark.parametrize("coefficients", [((1.5,),), ((1.5, -0.5), ()), ()])
def test_coefficients_are_counted(coefficients: tuple[tuple[float, ...], ...]) -> None:
    """optax refuses the right number of coefficients and takes wrong ones."""
    polar.Polynomial(((1.5, -0.5), (1.875, -1.25, 0.375)))
    with pytest.raises(ValueError, match="at least"):
        polar.Polynomial(coefficients)


@pytest.mark.parametrize("nesterov", [True, False])
def test_gradients_stay(nesterov: bool) -> None:
    """KellerJordan's Muon, timm, pytorch_optimizer, flash-muon and DeepSpeed write the mixture into p.grad."""
    p = nn.Parameter(torch.ones(4, 6))
    p.grad = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    before = p.grad.clone()
    optimizer = Muon([p], nesterov=nesterov)
    optimizer.step()
    optimizer.step()
    assert torch.equal(p.grad, before)


@pytest.mark.parametrize("nesterov", [True, False])
def test_momentum_is_used_with_and_without_nesterov(nesterov: bool) -> None:
    """fsdp_optimizers steps along the bare gradient without Nesterov."""
    first, second = (torch.randn(4, 6, generator=torch.Generator().manual_seed(s)) for s in (0, 1))
    p = nn.Parameter(torch.zeros(4, 6))
    optimizer = Muon([p], lr=1.0, weight_decay=0.0, momentum=0.99, nesterov=nesterov, polar="exact-svd")
    for g in (1000.0 * first, second):
        before = p.detach().clone()
        p.grad = g
        optimizer.step()
    assert measure(lmo.Spectral(), first, p.detach() - before, exact=True).gap < 0.01


def test_nothing_falls_back_in_silence() -> None:
    """The commonest complaint: it trained, and it was not Muon. What no LMO moves is in the table, with the reason."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8, 8), nn.Linear(8, 2))
    lines = {line.parameter: line for line in explain(Muon.for_model(model, 0.02)).lines}
    assert {name for name, line in lines.items() if line.algorithm == "spectral"} == {"0.weight", "2.weight"}
    assert all(line.why for line in lines.values())
    with pytest.raises(ValueError, match=r"needs a matrix, got a parameter of shape \(8,\)"):
        Muon(model.parameters())
