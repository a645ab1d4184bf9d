"""What torch optimizers promise: checkpoints, groups, closures, hooks, errors that leave nothing half done."""

import copy
import io
import pickle
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch

from inexact_muon import Muon, Scion, lmo, polar
from inexact_muon.optim import AdaMuon, Hyperball, LMOOptimizer, Muon2, NorMuon, clip_grad_norm_, gluon
from test_optim_equations import problem, train
from torch_features import needs_grad_dtype, needs_torch_muon

MAKERS: dict[str, Callable[[Any], LMOOptimizer]] = {
    "muon": lambda p: Muon(p, lr=0.02),
    "muon-rational": lambda p: Muon(p, lr=0.02, polar="zolotarev:3"),
    "muon-fp32-state": lambda p: Muon(p, lr=0.02, state_dtype=torch.float32),
    "scion": lambda p: Scion(p, lr=0.02, ball=lmo.RowNorm(scale="rms"), radius=5.0, constrained=True),
    "clipped": lambda p: Scion(p, lr=0.02, radius=3.0, length="clipped"),
    "gluon": lambda p: gluon(p, 0.5, 3.0, momentum=0.5),
    "sign": lambda p: LMOOptimizer(p, 0.02, 0.9, ball="sign"),
    "normuon": lambda p: NorMuon(p, lr=0.02),
    "adamuon": lambda p: AdaMuon(p, lr=0.02, decay="cautious"),
    "muon2": lambda p: Muon2(p, lr=0.02, decay="independent", weight_decay=0.01),
    "hyperball": lambda p: Hyperball(p, lr=0.02, after="row-moment"),
}


def through_disk(state: dict[str, Any]) -> dict[str, Any]:
    stream = io.BytesIO()
    torch.save(state, stream)
    stream.seek(0)
    loaded: dict[str, Any] = torch.load(stream, weights_only=True)
    return loaded


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_resume_is_bit_exact(name: str, dtype: torch.dtype) -> None:
    params, gradients = problem([(6, 9), (9, 6)], 8, dtype)
    twin = [torch.nn.Parameter(p.detach().clone()) for p in params]
    optimizer = MAKERS[name](params)
    train(optimizer, params, gradients)

    first = MAKERS[name](twin)
    train(first, twin, gradients[:4])
    saved = through_disk(first.state_dict())
    resumed = [torch.nn.Parameter(p.detach().clone()) for p in twin]
    second = MAKERS[name](resumed)
    second.load_state_dict(saved)
    train(second, resumed, gradients[4:])
    for a, b in zip(params, resumed, strict=True):
        assert torch.equal(a, b)
        mine, theirs = optimizer.state[a], second.state[b]
        assert mine.keys() == theirs.keys()
        for key in mine:
            assert torch.equal(mine[key], theirs[key])
            assert mine[key].dtype == theirs[key].dtype


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("clone", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))], ids=["deepcopy", "pickle"])
def test_copies_step_alike(name: str, clone: Callable[[Any], Any]) -> None:
    params, gradients = problem([(6, 9)], 4, torch.float32)
    optimizer = MAKERS[name](params)
    train(optimizer, params, gradients[:2])
    other = clone(optimizer)
    copied = other.param_groups[0]["params"]
    train(optimizer, params, gradients[2:])
    train(other, copied, gradients[2:])
    assert copied[0] is not params[0]
    assert torch.equal(copied[0], params[0])


@needs_torch_muon
def test_buffers_of_torch_muon_load() -> None:
    params, gradients = problem([(6, 9)], 6, torch.float32)
    theirs = torch.optim.Muon(params, lr=0.05, momentum=0.8, weight_decay=0.0)
    train(theirs, params, gradients[:3])
    saved = through_disk(theirs.state_dict())
    ours = Muon(params, ns_steps=5)
    ours.load_state_dict(saved)
    group = ours.param_groups[0]
    assert (group["lr"], group["momentum"], group["weight_decay"]) == (0.05, 0.8, 0.0)
    assert "ns_steps" not in group
    buffer = ours.state[params[0]]["momentum_buffer"]
    assert torch.equal(buffer, theirs.state[params[0]]["momentum_buffer"])
    train(ours, params, gradients[3:])


def test_another_oracle_keeps_the_constructors_and_warns() -> None:
    params, gradients = problem([(6, 9)], 2, torch.float32)
    saved = Muon(params, polar="jordan:5")
    train(saved, params, gradients)
    mine = Muon(params, polar="zolotarev:3")
    with pytest.warns(UserWarning, match=r"made with ball spectral\(polar=jordan.*keeping spectral\(polar=zolotarev"):
        mine.load_state_dict(saved.state_dict())
    assert mine.ball(mine.param_groups[0]) == lmo.Spectral(polar=polar.Zolotarev(3))


def test_another_length_keeps_the_constructors_and_warns() -> None:
    params, _ = problem([(6, 9)], 0, torch.float32)
    saved, mine = Scion(params, length="clipped"), Scion(params)
    with pytest.warns(UserWarning, match=r"made with length clipped\(\); keeping fixed\(\) \(lmo\)"):
        mine.load_state_dict(saved.state_dict())
    assert mine.param_groups[0]["length"] == "fixed()"


def test_groups_have_their_own_options() -> None:
    params, gradients = problem([(6, 9), (9, 6)], 3)
    groups = [
        {"params": [params[0]], "lr": 0.5, "weight_decay": 0.0},
        {"params": [params[1]], "ball": lmo.Sign(), "momentum": 0.0, "scale": "none"},
    ]
    optimizer = Muon(groups, lr=0.1)
    before = [p.detach().clone() for p in params]
    train(optimizer, params, gradients[:1])
    assert optimizer.ball(optimizer.param_groups[1]) == lmo.Sign()
    expected = before[1] * (1 - 0.1 * 0.1) - 0.1 * gradients[0][1].sign()
    torch.testing.assert_close(params[1].detach(), expected)
    late = torch.nn.Parameter(torch.zeros(3, 4, dtype=torch.float64))
    optimizer.add_param_group({"params": [late], "ball": "col-norm"})
    late.grad = torch.ones(3, 4, dtype=torch.float64)
    optimizer.step()
    assert late.abs().sum() > 0


def test_zero_weight_decay_is_honoured() -> None:
    params, _ = problem([(3, 4)], 0)
    assert Muon(params, weight_decay=0.0).param_groups[0]["weight_decay"] == 0.0


def test_gradients_are_neither_changed_nor_kept() -> None:
    """KellerJordan's Muon, timm and pytorch_optimizer write Nesterov's mixture into p.grad."""
    for make in MAKERS.values():
        params, gradients = problem([(6, 9)], 1, torch.float32)
        gradient = gradients[0][0].clone()
        params[0].grad = gradient
        optimizer = make(params)
        optimizer.step()
        assert params[0].grad is gradient
        assert torch.equal(gradient, gradients[0][0])
        gradient.fill_(7.0)
        assert not (optimizer.state[params[0]]["momentum_buffer"] == 7.0).any()


@pytest.mark.parametrize("nesterov", [True, False])
def test_bfloat16_momentum_is_not_normalised(nesterov: bool) -> None:
    """torch.optim.Muon 2.13 and pytorch_optimizer overwrite the buffer without Nesterov."""
    params, gradients = problem([(16, 24)], 1, torch.bfloat16)
    optimizer = Muon(params, nesterov=nesterov, momentum=0.5)
    train(optimizer, params, gradients)
    buffer = optimizer.state[params[0]]["momentum_buffer"]
    torch.testing.assert_close(buffer, 0.5 * gradients[0][0])


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_bad_gradient_touches_nothing_and_nobody_else(name: str, bad: float) -> None:
    params, gradients = problem([(6, 9), (9, 6)], 4, torch.float32)
    clean = [torch.nn.Parameter(p.detach().clone()) for p in params]
    optimizer, other = MAKERS[name](params), MAKERS[name](clean)
    poisoned = [[g.clone() for g in step] for step in gradients]
    poisoned[0][0][1, 2] = bad  # the very first gradient
    poisoned[2][0][0, 0] = bad
    train(optimizer, params, poisoned)
    for k, step in enumerate(gradients):
        clean[0].grad = step[0].clone() if k in (1, 3) else None
        clean[1].grad = step[1].clone()
        other.step()
    assert torch.equal(params[0], clean[0])
    assert torch.equal(params[1], clean[1])
    assert int(optimizer.state[params[0]]["skipped"]) == 2
    assert int(optimizer.state[params[0]]["step"]) == 2
    assert int(optimizer.state[params[1]]["skipped"]) == 0


def test_raising_on_a_bad_gradient_changes_nothing() -> None:
    params, gradients = problem([(6, 9), (9, 6)], 1, torch.float32)
    gradients[0][1][0, 0] = torch.nan
    before = [p.detach().clone() for p in params]
    optimizer = Muon(params, on_nonfinite="raise")
    with pytest.raises(ValueError, match="not finite; nothing was changed"):
        train(optimizer, params, gradients)
    assert all(torch.equal(p, b) for p, b in zip(params, before, strict=True))
    assert not optimizer.state


def test_zero_and_missing_gradients() -> None:
    params, _ = problem([(6, 9), (9, 6)], 0, torch.float32)
    before = [p.detach().clone() for p in params]
    optimizer = Muon(params, lr=0.1, weight_decay=0.0)
    params[0].grad = torch.zeros(6, 9)
    optimizer.step()
    assert torch.equal(params[0], before[0])
    assert torch.equal(params[1], before[1])
    assert params[1] not in optimizer.state


@pytest.mark.parametrize("factor", [1e-38, 1e-12, 1e12, 1e38])
def test_the_scale_of_the_gradient_does_not_matter(factor: float) -> None:
    one, gradients = problem([(6, 9)], 3, torch.float32)
    other = [torch.nn.Parameter(p.detach().clone()) for p in one]
    train(Muon(one, 0.1), one, gradients)
    train(Muon(other, 0.1), other, [[g * factor for g in step] for step in gradients])
    torch.testing.assert_close(one[0].detach(), other[0].detach(), rtol=0, atol=2e-3)


@needs_grad_dtype
def test_gradients_of_another_dtype() -> None:
    p = torch.nn.Parameter(torch.randn(4, 6, dtype=torch.float64))
    q = torch.nn.Parameter(p.detach().clone())
    g = torch.randn(4, 6)
    p.grad_dtype = None
    p.grad = g.clone()
    q.grad = g.double()
    Muon([p]).step()
    Muon([q]).step()
    torch.testing.assert_close(p.detach(), q.detach())


@pytest.mark.parametrize("lr", [0.1, 1, torch.tensor(0.1)])
def test_lr_kinds_and_schedulers(lr: Any) -> None:
    params, gradients = problem([(4, 6)], 3)
    optimizer = Muon(params, lr=lr, weight_decay=0.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    lengths = []
    for step in gradients:
        before = params[0].detach().clone()
        train(optimizer, params, [step])
        lengths.append(float((params[0].detach() - before).norm()))
        scheduler.step()
    assert lengths[1] / lengths[0] == pytest.approx(0.5, rel=0.15)
    assert lengths[2] / lengths[0] == pytest.approx(0.25, rel=0.15)


def test_closures_and_hooks() -> None:
    params, gradients = problem([(4, 6)], 1)
    optimizer = Muon(params)
    calls: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))

    def closure() -> float:
        assert torch.is_grad_enabled()
        params[0].grad = gradients[0][0].clone()
        return 3.0

    assert optimizer.step(closure) == 3.0
    assert calls == ["before", "after"]

    def broken() -> float:
        raise RuntimeError("no loss")

    before = params[0].detach().clone()
    with pytest.raises(RuntimeError, match="no loss"):
        optimizer.step(broken)
    assert torch.equal(params[0], before)


def test_named_parameters() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 6, bias=False), torch.nn.Linear(6, 3, bias=False))
    optimizer = Muon(model.named_parameters())
    assert optimizer.param_groups[0]["param_names"] == ["0.weight", "1.weight"]
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda p: Muon(p, lr=-1.0), ValueError, "lr must be finite and not negative"),
        (lambda p: Muon(p, lr="3e-4"), ValueError, "lr must be finite and not negative, got '3e-4'"),
        (lambda p: Muon(p, lr=torch.ones(2)), ValueError, "lr must have one element"),
        (lambda p: Muon(p, momentum=1.0), ValueError, r"momentum must lie in \[0, 1\)"),
        (lambda p: Muon(p, weight_decay=float("nan")), ValueError, "weight_decay must be finite"),
        (lambda p: Muon(p, adjust_lr_fn="orginal"), ValueError, "did you mean 'original'"),
        (lambda p: Muon(p, polar="jordan:5", ns_steps=5), ValueError, "either polar= or ns_steps"),
        (lambda p: Muon(p, ns_steps=0), ValueError, "ns_steps must lie between 1 and 99"),
        (lambda p: Muon(p, polar="jordn"), ValueError, "did you mean 'jordan'"),
        (lambda p: Muon(p, on_nonfinite="ignore"), ValueError, "on_nonfinite must be skip or raise"),
        (lambda p: Scion(p, ball=3), TypeError, "ball must be a Ball or its text"),
        (lambda p: LMOOptimizer(p, 0.1, 0.9, ball="sign", momentum_init="one"), ValueError, "momentum_init must be"),
        (lambda p: LMOOptimizer(p, 0.1, 0.9, ball="sign", constrained=True, weight_decay=0.1), ValueError, "leave out"),
        (lambda p: Scion(p, constrained=True, length="clipped"), ValueError, "leave out length"),
        (lambda p: Scion(p, length="cliped"), ValueError, "did you mean 'clipped'"),
        (lambda p: gluon(p, 0.0, 0.0), ValueError, "nor both zero"),
        (lambda p: Scion(p, length=3), TypeError, "length must be a Length or its text"),
        (
            lambda p: Muon([torch.nn.Parameter(torch.ones(3))]),
            ValueError,
            r"needs a matrix, got a parameter of shape \(3,\)",
        ),
        (lambda p: Muon([torch.nn.Parameter(torch.ones(2, 2) * 1j)]), TypeError, "complex"),
    ],
)
def test_bad_options(make: Callable[[Any], Any], error: type[Exception], words: str) -> None:
    params, _ = problem([(3, 4)], 0)
    with pytest.raises(error, match=words) as caught:
        make(params)
    assert "\n" not in str(caught.value)


def test_eps_that_would_do_nothing_is_said() -> None:
    params, _ = problem([(3, 4)], 0)
    with pytest.warns(UserWarning, match="eps=0.1 has no effect"):
        Muon(params, eps=0.1)


def test_sparse_gradients_are_refused_before_anything_changes() -> None:
    params, gradients = problem([(3, 4), (4, 3)], 1)
    before = params[0].detach().clone()
    params[0].grad = gradients[0][0]
    params[1].grad = gradients[0][1].to_sparse()
    with pytest.raises(TypeError, match="sparse gradients are not supported"):
        Muon(params).step()
    assert torch.equal(params[0], before)


@needs_torch_muon
def test_swapping_is_one_line() -> None:
    """Positional order, keywords and defaults of torch.optim.Muon."""
    import inspect

    ours = inspect.signature(Muon.__init__).parameters
    theirs = inspect.signature(torch.optim.Muon.__init__).parameters
    assert list(ours)[:6] == list(theirs)[:6]
    assert set(theirs) <= set(ours)
    for name in ("lr", "weight_decay", "momentum", "nesterov", "eps", "adjust_lr_fn"):
        assert ours[name].default == theirs[name].default


def test_random_state_and_default_dtype_are_untouched() -> None:
    params, gradients = problem([(6, 9)], 2, torch.float32)
    state = torch.random.get_rng_state()
    train(Muon(params), params, gradients)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_clipping_leaves_lmo_gradients_alone() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
    optimizer = Muon.for_model(model, 0.02)
    (100.0 * model(torch.ones(3, 6))).square().sum().backward()
    before = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    norms = clip_grad_norm_(optimizer, 1.0)
    aside = [p.grad for n, p in model.named_parameters() if n != "0.weight"]
    assert torch.equal(model[0].weight.grad, before["0.weight"])
    assert float(torch.nn.utils.get_total_norm(aside)) == pytest.approx(1.0, rel=1e-4)
    assert float(norms["lmo"]) == pytest.approx(float(before["0.weight"].norm()))
    assert float(norms["adamw"]) > 1.0
    with pytest.raises(ValueError, match="max_norm must be positive"):
        clip_grad_norm_(optimizer, 0.0)


def test_gradient_scaler() -> None:
    """A scaler at 2^16 skips the steps that overflow and changes none of the others."""
    params, gradients = problem([(6, 9)], 3, torch.float32)
    twin = [torch.nn.Parameter(p.detach().clone()) for p in params]
    optimizer, other = Muon(params), Muon(twin)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    for k, step in enumerate(gradients):
        scaler.scale(torch.zeros(()))  # starts the scaler
        params[0].grad = step[0] * scaler.get_scale()
        if k == 1:
            params[0].grad[0, 0] = torch.inf
        scaler.step(optimizer)
        scaler.update()
    train(other, twin, [gradients[0], gradients[2]])
    assert torch.equal(params[0], twin[0])


@pytest.mark.parametrize("name", MAKERS)
def test_two_runs_are_the_same_bits(name: str) -> None:
    ends = []
    for _ in range(2):
        params, gradients = problem([(6, 9), (9, 6)], 5, torch.float32)
        train(MAKERS[name](params), params, gradients)
        ends.append(params)
    for a, b in zip(*ends, strict=True):
        assert torch.equal(a, b)


def test_autocast_changes_nothing() -> None:
    params, gradients = problem([(6, 9)], 3, torch.float32)
    twin = [torch.nn.Parameter(p.detach().clone()) for p in params]
    train(Muon(twin), twin, gradients)
    optimizer = Muon(params)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        train(optimizer, params, gradients)
    assert torch.equal(params[0], twin[0])


def test_awkward_parameters() -> None:
    """Not contiguous, one row, one column, empty."""
    base = torch.randn(12, 8, generator=torch.Generator().manual_seed(0))
    params = [torch.nn.Parameter(v) for v in (base.mT[:, ::2], base[:1], base[:, :1], base[:0])]
    optimizer = Muon(params, lr=0.1)
    for p in params:
        p.grad = torch.ones_like(p)
    optimizer.step()
    assert all(bool(p.isfinite().all()) for p in params)
    assert optimizer.state[params[3]]["step"] == 1


def test_update_size_does_not_change_with_width() -> None:
    """The spectral scale: activations of x -> W x move by the same RMS at every width (a coordinate check)."""
    moves = []
    for width in (32, 64, 128, 256):
        generator = torch.Generator().manual_seed(width)
        p = torch.nn.Parameter(torch.zeros(2 * width, width))
        p.grad = torch.randn(2 * width, width, generator=generator)
        Muon([p], lr=0.1, weight_decay=0.0, polar=polar.ExactSVD(), adjust_lr_fn="spectral").step()
        x = torch.randn(width, generator=generator)
        moves.append(float((p.detach() @ x).square().mean().sqrt() / x.square().mean().sqrt()))
    for move in moves:
        assert move == pytest.approx(0.1, rel=0.05)


def test_a_saved_buffer_keeps_its_dtype_under_another_state_dtype() -> None:
    params, gradients = problem([(6, 9)], 4, torch.bfloat16)
    saved = Muon(params)
    train(saved, params, gradients[:2])
    resumed = Muon(params, state_dtype=torch.float32)
    resumed.load_state_dict(through_disk(saved.state_dict()))
    train(resumed, params, gradients[2:])
    assert resumed.state[params[0]]["momentum_buffer"].dtype == torch.bfloat16


def test_activations_move_alike_at_every_width() -> None:
    """A coordinate check: five steps of an MLP; hidden activations move by the same RMS as the width doubles."""
    moves: dict[int, list[float]] = {}
    for width in (64, 128, 256, 512):
        generator = torch.Generator().manual_seed(0)
        sizes = (16, width, width, width)
        layers = [torch.nn.Linear(a, b, bias=False) for a, b in pairwise(sizes)]
        for layer in layers:
            shape = layer.weight.shape
            layer.weight.data = torch.randn(shape, generator=generator) / shape[1] ** 0.5
        x = torch.randn(64, 16, generator=generator)
        y = torch.randn(64, generator=generator)

        def hidden(layers: list[torch.nn.Linear] = layers, x: torch.Tensor = x) -> list[torch.Tensor]:
            seen = [x]
            for layer in layers:
                seen.append(torch.relu(layer(seen[-1])))
            return seen[1:]

        before = [h.detach() for h in hidden()]
        optimizer = Muon([layer.weight for layer in layers], lr=0.02, weight_decay=0.0, adjust_lr_fn="spectral")
        for _ in range(5):
            optimizer.zero_grad()
            (hidden()[-1].mean(dim=1) - y).square().mean().backward()
            optimizer.step()
        moves[width] = [float((a.detach() - b).square().mean().sqrt()) for a, b in zip(hidden(), before, strict=True)]
    for layer in range(3):
        sizes_of_move = [move[layer] for move in moves.values()]
        assert max(sizes_of_move) < 1.6 * min(sizes_of_move), moves
