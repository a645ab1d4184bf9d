"""What people do to groups, parameters, gradients and states between two steps takes effect in the next one."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from inexact_muon import Muon, lmo
from inexact_muon.optim import finite

SHAPES = ((6, 4), (4, 6), (6, 4), (5,))


@pytest.fixture(params=[("cpu",), ()], ids=["host", "accelerator"], autouse=True)
def flags(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finite, "HOST_READABLE", request.param)


def draw(seed: int, shape: tuple[int, ...]) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def made() -> tuple[list[nn.Parameter], Muon]:
    """Two groups of matrices and one of AdamW, two steps old."""
    ps = [nn.Parameter(draw(i, shape)) for i, shape in enumerate(SHAPES)]
    groups = [{"params": ps[:2]}, {"params": ps[2:3]}, {"params": ps[3:], "algorithm": "adamw"}]
    optimizer = Muon(groups, lr=0.05)
    for step in range(2):
        step_with(ps, optimizer, step)
    return ps, optimizer


def step_with(ps: list[nn.Parameter], optimizer: Muon, step: int) -> None:
    for i, p in enumerate(ps):
        p.grad = draw(100 * step + 50 + i, tuple(p.shape)).to(p.dtype)
    optimizer.step()


def replaced(ps: list[nn.Parameter], optimizer: Muon) -> None:
    """As Accelerate's setter and hand-made schedulers do."""
    optimizer.param_groups = [{**group, "lr": 0.0} for group in optimizer.param_groups]


def one_replaced(ps: list[nn.Parameter], optimizer: Muon) -> None:
    optimizer.param_groups[0] = {**optimizer.param_groups[0], "lr": 0.0}


def moved(ps: list[nn.Parameter], optimizer: Muon) -> None:
    """The second matrix goes to a group that stands still."""
    first, second, _ = optimizer.param_groups
    second["lr"] = 0.0
    second["params"].append(first["params"].pop())


def exchanged(ps: list[nn.Parameter], optimizer: Muon) -> None:
    """Two groups exchange their parameters; sizes stay as they are."""
    first, second, _ = optimizer.param_groups
    first["lr"] = 0.0
    first["params"][0], second["params"][0] = second["params"][0], first["params"][0]


STILL: dict[str, tuple[Callable[[list[nn.Parameter], Muon], None], tuple[int, ...]]] = {
    "groups replaced": (replaced, (0, 1, 2, 3)),
    "one group replaced": (one_replaced, (0, 1)),
    "a parameter moved": (moved, (1, 2)),
    "two parameters exchanged": (exchanged, (1, 2)),
}
"""What is done -> indices of the parameters whose learning rate is then zero."""


@pytest.mark.parametrize("name", STILL)
def test_groups(name: str) -> None:
    change, still = STILL[name]
    ps, optimizer = made()
    change(ps, optimizer)
    before = [p.detach().clone() for p in ps]
    for step in (2, 3):
        step_with(ps, optimizer, step)
    assert tuple(i for i, (p, old) in enumerate(zip(ps, before, strict=True)) if torch.equal(p, old)) == still


def other_storage(p: nn.Parameter, optimizer: Muon) -> None:
    p.data = p.data.clone()


def other_strides(p: nn.Parameter, optimizer: Muon) -> None:
    p.data = p.data.t().contiguous().t()


def other_buffer(p: nn.Parameter, optimizer: Muon) -> None:
    optimizer.state[p]["momentum_buffer"] = optimizer.state[p]["momentum_buffer"].clone()


def copied_state(p: nn.Parameter, optimizer: Muon) -> None:
    optimizer.state[p] = copy.deepcopy(optimizer.state[p])


@pytest.mark.parametrize("change", [other_storage, other_strides, other_buffer, copied_state])
def test_tensors_with_equal_values(change: Callable[[nn.Parameter, Muon], None]) -> None:
    """A step with other tensors of the same values gives the same values, in these tensors."""
    ends = []
    for changed in (False, True):
        ps, optimizer = made()
        old = [ps[0].data, optimizer.state[ps[0]]["momentum_buffer"]]
        values = [x.clone() for x in old]
        if changed:
            change(ps[0], optimizer)
        now = [ps[0].data.data_ptr(), optimizer.state[ps[0]]["momentum_buffer"].data_ptr()]
        for step in (2, 3):
            step_with(ps, optimizer, step)
        for tensor, value, place in zip(old, values, now, strict=True):
            assert torch.equal(tensor, value) == (tensor.data_ptr() != place), "only what is in use has changed"
        ends.append([*ps, *(optimizer.state[p].get("momentum_buffer", p) for p in ps)])
    for a, b in zip(*ends, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_another_dtype() -> None:
    """The momentum stays what it was; the weight is rounded to its new dtype at each step and no more."""
    ps, optimizer = made()
    twin, other = made()
    ps[0].data = ps[0].data.float()
    ps[0].grad = None
    for step in (2, 3):
        step_with(ps, optimizer, step)
        step_with(twin, other, step)
    assert (ps[0].dtype, optimizer.state[ps[0]]["momentum_buffer"].dtype) == (torch.float32, torch.float64)
    torch.testing.assert_close(ps[0].detach().double(), twin[0].detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ps[1].detach(), twin[1].detach(), rtol=0, atol=1e-12)


def test_another_buffer_of_another_dtype() -> None:
    ps, optimizer = made()
    twin, other = made()
    optimizer.state[ps[0]]["momentum_buffer"] = optimizer.state[ps[0]]["momentum_buffer"].float()
    for step in (2, 3):
        step_with(ps, optimizer, step)
        step_with(twin, other, step)
    torch.testing.assert_close(ps[0].detach(), twin[0].detach(), rtol=1e-4, atol=1e-5)


def test_no_groups_is_no_update() -> None:
    ps, optimizer = made()
    before = [p.detach().clone() for p in ps]
    optimizer.param_groups.clear()
    step_with(ps, optimizer, 2)
    assert all(map(torch.equal, ps, before))


EDITS: dict[str, Any] = {
    "ball": ["sign", lmo.Sign(), "row-norm"],
    "length": ["steepest", "clipped"],
    "view": ["split(rows=2, groups=1)", "flatten"],
    "before": ["sign"],
    "after": ["rms:0.2", "row-moment + rms:0.2"],
}
"""Option -> texts and values that a group may get between two steps."""


@pytest.mark.parametrize(("key", "value"), [(key, value) for key in EDITS for value in EDITS[key]], ids=str)
def test_options_that_are_texts(key: str, value: Any) -> None:
    """As in an optimizer that has the option from the start, with the momentum of the edited one."""
    ps, optimizer = made()
    optimizer.param_groups[0][key] = value
    twins = [nn.Parameter(p.detach().clone()) for p in ps[:2]]
    other = Muon([{"params": twins, key: value}], lr=0.05)
    for p, twin in zip(ps, twins, strict=False):
        other.state[twin] = copy.deepcopy(optimizer.state[p])
    step_with(ps, optimizer, 2)
    step_with(twins, other, 2)
    assert all(map(torch.equal, ps, twins))
    assert optimizer.param_groups[0][key] == other.param_groups[0][key]
    copy.deepcopy(optimizer).load_state_dict(optimizer.state_dict())


def test_betas() -> None:
    """An AdamW group holds them as momentum and beta2; what is written as betas is read."""
    ps, optimizer = made()
    optimizer.param_groups[2]["betas"] = (0.5, 0.75)
    step_with(ps, optimizer, 2)
    assert [optimizer.param_groups[2][key] for key in ("momentum", "beta2")] == [0.5, 0.75]
    optimizer.param_groups[2]["betas"] = (1.5, 0.75)
    before = [p.detach().clone() for p in ps]
    with pytest.raises(ValueError, match="betas"):
        step_with(ps, optimizer, 3)
    assert all(map(torch.equal, ps, before))


def test_betas_of_an_lmo_group_are_read_as_at_its_construction() -> None:
    ps, optimizer = made()
    optimizer.param_groups[0]["betas"] = (0.5, 0.75)
    step_with(ps, optimizer, 2)
    assert optimizer.param_groups[0]["momentum"] == 0.5


def test_a_count_of_steps_that_is_a_number() -> None:
    """As other libraries write it: the step goes on from it."""
    ps, optimizer = made()
    optimizer.state[ps[0]]["step"] = 7
    step_with(ps, optimizer, 2)
    assert float(optimizer.state[ps[0]]["step"]) == 8.0


def unreadable(ps: list[nn.Parameter], optimizer: Muon) -> None:
    optimizer.param_groups[0]["ball"] = "spherical"


def stage_with_a_dual(ps: list[nn.Parameter], optimizer: Muon) -> None:
    optimizer.param_groups[0].update(length="steepest", after="rms:0.2")


def vector_to_matrices(ps: list[nn.Parameter], optimizer: Muon) -> None:
    optimizer.param_groups[0]["params"].append(optimizer.param_groups[2]["params"].pop())


def misspelled(ps: list[nn.Parameter], optimizer: Muon) -> None:
    optimizer.param_groups[0]["scale"] = "orginal"


def another_decay(ps: list[nn.Parameter], optimizer: Muon) -> None:
    optimizer.param_groups[0]["decay"] = "coupled"


def rate_of_a_file(ps: list[nn.Parameter], optimizer: Muon) -> None:
    optimizer.param_groups[0].update(lr="0.1", nesterov=False)


def lost_option(ps: list[nn.Parameter], optimizer: Muon) -> None:
    del optimizer.param_groups[0]["momentum"]


def twice(ps: list[nn.Parameter], optimizer: Muon) -> None:
    optimizer.param_groups[0]["params"].append(optimizer.param_groups[1]["params"][0])


def no_momentum(ps: list[nn.Parameter], optimizer: Muon) -> None:
    optimizer.state[ps[0]]["momentum_buffer"] = None


def resized(ps: list[nn.Parameter], optimizer: Muon) -> None:
    ps[0].data = ps[0].data[:3].clone()
    ps[0].grad = None


def written_by_hand(ps: list[nn.Parameter], optimizer: Muon) -> None:
    optimizer.param_groups = [{"params": group["params"], "lr": 0.01} for group in optimizer.param_groups]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (written_by_hand, r"param_groups\[0\] has no '"),
        (vector_to_matrices, "needs a matrix"),
        (resized, "was resized"),
        (unreadable, "spherical"),
        (misspelled, "did you mean 'original'"),
        (another_decay, "decay must be"),
        (rate_of_a_file, "lr must be finite"),
        (lost_option, "has no 'momentum'"),
        (twice, "in two of param_groups"),
        (no_momentum, "no tensor, but None"),
        (stage_with_a_dual, "leave out after"),
    ],
)
def test_what_cannot_have_effect_is_refused_before_anything_changes(
    change: Callable[[list[nn.Parameter], Muon], None], said: str
) -> None:
    ps, optimizer = made()
    change(ps, optimizer)
    before = [p.detach().clone() for p in ps]
    with pytest.raises(ValueError, match=said):
        step_with(ps, optimizer, 2)
    assert all(map(torch.equal, ps, before))


def with_id(wanted: int, make: Callable[[], Any], tries: int = 2000) -> Any:
    """An object, if possible at the address of one that is gone."""
    found = [make() for _ in range(tries)]
    return next((one for one in found if id(one) == wanted), found[0])


def test_a_freed_parameter_leaves_nothing_to_one_with_its_id() -> None:
    """Neither a place in a batch nor a sample of its inexactness."""
    p = nn.Parameter(torch.eye(4))
    optimizer = Muon([("first", p)], lr=0.1, sample_every=1)
    p.grad = torch.diag(torch.tensor([1.0, 1e-3, 1e-3, 1e-3]))
    optimizer.step()
    assert optimizer.inexactness()
    wanted = id(p)
    optimizer.state.clear()
    optimizer.param_groups[0]["params"] = [nn.Parameter(torch.eye(3))]
    optimizer.param_groups[0]["params"][0].grad = torch.eye(3)
    optimizer.step()
    del p
    gc.collect()
    assert len(optimizer.telemetry.samples) == 1, "of the second parameter alone"
    q = with_id(wanted, lambda: nn.Parameter(torch.zeros(2, 5)))
    optimizer.param_groups[0]["params"] = [q]
    assert optimizer.inexactness() == {}, "of another parameter"
    q.grad = torch.ones(2, 5)
    optimizer.step()
    assert int(optimizer.state[q]["step"]) == 1
    assert float(q.detach().abs().max()) > 0.0


LARGE: dict[str, dict[str, Any]] = {
    "plain": {"nesterov": False},
    "nesterov": {},
    "sign": {"ball": "sign"},
    "row-norm": {"ball": "row-norm"},
    "second moment": {"before": "second-moment"},
    "moments after": {"after": "row-moment + entry-moment + rms:0.2"},
    "fixed norm": {"fixed_norm": True, "weight_decay": 0.0},
    "smooth": {"length": "smooth(l0=1.0, l1=3.0)"},
    "clipped": {"length": "clipped"},
}


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_large_gradients_that_change_sign(name: str, dtype: torch.dtype) -> None:
    """Their difference is not a finite number, nor are their squares; weights and states stay finite."""
    p = nn.Parameter(torch.eye(4, 6, dtype=dtype))
    optimizer = Muon([{"params": [p], **LARGE[name]}], lr=0.1)
    for step in range(6):
        p.grad = torch.full((4, 6), 0.45 * torch.finfo(dtype).max * (-1) ** step, dtype=dtype)
        optimizer.step()
    assert not int(optimizer.state[p]["skipped"])
    assert all(bool(x.isfinite().all()) for x in [p, *optimizer.state[p].values()])
