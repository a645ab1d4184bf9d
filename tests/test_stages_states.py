"""States of stages: resumed on other numbers of ranks, untouched where a gradient is skipped, checked when loaded."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from inexact_muon import Muon
from inexact_muon.optim import Hyperball, finite
from ranks import on_ranks
from stage_cases import CASES, STEPS, draws, optimizer_of, written_out

STAGED = ("second moment", "row moment", "longer moment", "adamuon", "rows on spheres", "cautious independent")
HALF = STEPS // 2


def step(optimizer: Muon, params: list[Any], place: Callable[[Tensor], Any], steps: range) -> None:
    for k in steps:
        for p, g in zip(params, draws(1 + k), strict=True):
            p.grad = place(g)
        optimizer.step()


def rows_of(world: int) -> Callable[[Tensor], Any]:
    mesh = init_device_mesh("cpu", (world,))
    return lambda x: distribute_tensor(x.clone(), mesh, [Shard(0)], src_data_rank=None)


def whole(x: Any) -> Any:
    return x.full_tensor() if isinstance(x, DTensor) else x


def first_half(rank: int, world: int) -> list[Any]:
    """For each case the whole parameters and the whole state dict after half of the steps."""
    place, found = rows_of(world), []
    for name in STAGED:
        params = [nn.Parameter(place(x)) for x in draws(0)]
        optimizer = optimizer_of(params, **CASES[name])
        step(optimizer, params, place, range(HALF))
        saved = optimizer.state_dict()
        state = {k: {key: whole(x) for key, x in entry.items()} for k, entry in saved["state"].items()}
        found.append(([whole(p.detach()) for p in params], {**saved, "state": state}))
    return found


def second_half(rank: int, world: int, halves: bytes) -> list[list[Tensor]]:
    place = rows_of(world) if world > 1 else torch.clone
    found = []
    for name, (start, saved) in zip(STAGED, torch.load(io.BytesIO(halves)), strict=True):
        params = [nn.Parameter(place(x)) for x in start]
        optimizer = optimizer_of(params, **CASES[name])
        for k, entry in saved["state"].items():
            for key, x in entry.items():
                entry[key] = place(x) if x.shape == params[k].shape else x
        optimizer.load_state_dict(saved)
        step(optimizer, params, place, range(HALF, STEPS))
        found.append([whole(p.detach()) for p in params])
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("saving", "loading"), [(2, 3), (3, 2), (2, 1)])
def test_a_checkpoint_resumes_on_another_number_of_ranks(saving: int, loading: int) -> None:
    halves = io.BytesIO()
    torch.save(on_ranks(first_half, saving)[0], halves)
    for found in on_ranks(second_half, loading, halves.getvalue()):
        for name, params in zip(STAGED, found, strict=True):
            for x, y in zip(params, written_out(CASES[name]), strict=True):
                assert float((x - y).abs().max()) <= 1e-12, name


@pytest.mark.parametrize("readable", [("cpu",), ()], ids=["host", "accelerator"])
@pytest.mark.parametrize("name", CASES)
def test_a_skipped_gradient_changes_no_bit(
    name: str, readable: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finite, "HOST_READABLE", readable)
    params = [nn.Parameter(x) for x in draws(0)]
    optimizer = optimizer_of(params, **CASES[name])
    step(optimizer, params, torch.clone, range(2))
    bad = range(0, len(params), 2)
    before = {k: [params[k].detach().clone(), *(x.clone() for x in optimizer.state[params[k]].values())] for k in bad}
    others = {k: params[k].detach().clone() for k in range(1, len(params), 2)}
    for k, (p, g) in enumerate(zip(params, draws(9), strict=True)):
        p.grad = g
        if k in bad:
            g.view(-1)[0] = torch.nan if k % 4 else torch.inf
    optimizer.step()
    for k in bad:
        state = optimizer.state[params[k]]
        for key, old, new in zip(("weight", *state), before[k], [params[k], *state.values()], strict=True):
            bits = [x.detach().reshape(-1).view(torch.uint8) for x in (old, new)]
            assert key == "skipped" or torch.equal(*bits), key
        assert float(state["skipped"]) == 1.0
    assert all(not torch.equal(params[k], old) for k, old in others.items())


def test_zero_gradients_leave_spheres_and_moments_alone() -> None:
    for name in ("rows on spheres", "fixed norm"):
        params = [nn.Parameter(x) for x in draws(0)]
        optimizer = optimizer_of(params, **CASES[name])
        for p in params:
            p.grad = torch.zeros_like(p)
        optimizer.step()
        assert all(torch.equal(p, x) for p, x in zip(params, draws(0), strict=True)), name


def test_a_matrix_that_starts_at_zero_has_no_sphere() -> None:
    zero, plain = nn.Parameter(torch.zeros(4, 6)), nn.Parameter(torch.zeros(4, 6))
    for weight, options in ((zero, {"fixed_norm": True}), (plain, {})):
        weight.grad = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
        Muon([weight], 0.1, 0.0, **options).step()
    torch.testing.assert_close(zero, plain)


def test_a_sphere_of_one_point_and_a_step_of_no_length_stay_finite_and_still() -> None:
    """The step ends in zero, which has no direction; with lr = 0 W is the same to the last bit."""
    point = nn.Parameter(torch.tensor([[2.0]]))
    optimizer = Muon([point], 1.0, 0.0, momentum=0.0, fixed_norm=True)
    for _ in range(3):
        point.grad = torch.ones(1, 1)
        optimizer.step()
        assert float(point.detach().abs()) <= 2.0
    weight = nn.Parameter(torch.randn(5, 7, generator=torch.Generator().manual_seed(0)))
    optimizer = Muon([weight], 0.05, 0.0, fixed_norm=True)
    for lr in (0.05, 0.05, 0.0):
        before, optimizer.param_groups[0]["lr"] = weight.detach().clone(), lr
        weight.grad = torch.randn(5, 7, generator=torch.Generator().manual_seed(1))
        optimizer.step()
        assert torch.equal(weight, before) == (lr == 0.0)


def test_the_norm_of_each_matrix_is_kept_for_long() -> None:
    weight = nn.Parameter(torch.randn(9, 5, generator=torch.Generator().manual_seed(0)))
    norms = weight.detach().view(3, 3, 5).norm(dim=(1, 2))
    optimizer = Muon([{"params": [weight], "view": "split:3"}], 0.2, 0.0, fixed_norm=True)
    generator = torch.Generator().manual_seed(1)
    for _ in range(300):
        weight.grad = torch.randn(9, 5, generator=generator)
        optimizer.step()
    torch.testing.assert_close(weight.detach().view(3, 3, 5).norm(dim=(1, 2)), norms, rtol=1e-6, atol=0.0)


def test_the_decay_is_independent_of_a_tuned_lr_and_follows_its_schedule() -> None:
    found = []
    for lr in (0.1, 0.001):
        weight = nn.Parameter(torch.eye(3, dtype=torch.float64))
        optimizer = Muon([weight], lr, 0.25, decay="independent")
        for share in (1.0, 0.5):
            optimizer.param_groups[0]["lr"] = share * lr
            weight.grad = torch.zeros_like(weight)
            optimizer.step()
        found.append(weight.detach())
    for w in found:
        torch.testing.assert_close(w, torch.eye(3, dtype=torch.float64) * (1 - 0.25) * (1 - 0.125))


def test_a_checkpoint_keeps_the_lr_that_decay_is_relative_to() -> None:
    weight = nn.Parameter(torch.eye(3))
    saved = Muon([weight], 0.1, 0.02, decay="independent")
    saved.param_groups[0]["lr"] = 0.01
    mine = Muon([weight], 0.5, 0.02, decay="independent")
    mine.load_state_dict(saved.state_dict())
    assert mine.param_groups[0]["decay_lr"] == 0.1
    plain = Muon([weight], 0.5, 0.02)
    with pytest.warns(UserWarning, match="made with decay independent; keeping decoupled"):
        plain.load_state_dict(saved.state_dict())
    assert plain.param_groups[0]["decay_lr"] == 1.0


def test_a_state_of_another_view_is_refused() -> None:
    weight = nn.Parameter(torch.randn(6, 6))
    whole, split = (
        Muon([{"params": [weight], "view": view}], after="row-moment", fixed_norm=True, weight_decay=0.0)
        for view in ("whole", "split:3")
    )
    weight.grad = torch.randn(6, 6)
    whole.step()
    with pytest.warns(UserWarning, match="made with view"):
        split.load_state_dict(whole.state_dict())
    before = weight.detach().clone()
    with pytest.raises(ValueError, match="saved with another view"):
        split.step()
    assert torch.equal(weight, before)


def test_a_radius_that_is_removed_is_noted_anew() -> None:
    p = nn.Parameter(torch.randn(6, 4, generator=torch.Generator().manual_seed(0)))
    optimizer = Hyperball([p], lr=0.1)
    for k in range(3):
        if k == 2:  # somebody has scaled the weights
            with torch.no_grad():
                p.mul_(3.0)
            del optimizer.state[p]["sphere_radius"]
        norm = float(p.detach().norm())
        p.grad = torch.randn(6, 4, generator=torch.Generator().manual_seed(k + 1))
        optimizer.step()
        assert float(p.detach().norm()) == pytest.approx(norm)
        assert float(optimizer.state[p]["sphere_radius"]) == pytest.approx(norm)
