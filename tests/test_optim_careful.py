"""The step without looking at values, in random subsets, compiled, in threads, for long, and with foreign files."""

import gc
import threading
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from inexact_muon import Muon, lmo, polar
from inexact_muon.optim import LMOOptimizer, finite, flat_stats, to_tensorboard, to_wandb
from test_optim_equations import problem, train
from test_optim_promises import MAKERS, through_disk


def adamw(params: list[nn.Parameter]) -> list[dict[str, Any]]:
    return [{"params": params, "algorithm": "adamw"}]


def half(params: list[nn.Parameter]) -> list[dict[str, Any]]:
    return [{"params": params, "keep": 0.5}]


@pytest.mark.parametrize("name", [*MAKERS, "adamw"])
def test_masks_give_the_same_as_looking(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs on an accelerator: whether a gradient is finite stays a tensor."""
    make = MAKERS.get(name, lambda p: LMOOptimizer(adamw(p), 0.02, 0.9, ball="sign", weight_decay=0.1))
    ends = []
    for readable in (("cpu",), ()):
        monkeypatch.setattr(finite, "HOST_READABLE", readable)
        params, gradients = problem([(6, 9), (9, 6)], 5, torch.float64)
        gradients[0][0][0, 0] = torch.nan
        gradients[3][1][2, 2] = torch.inf
        optimizer = make(params)
        train(optimizer, params, gradients)
        ends.append([*params, *(value for p in params for value in optimizer.state[p].values())])
    for a, b in zip(*ends, strict=True):
        tolerance = 1e-6 if "fp32" in name else 1e-12  # of the state
        torch.testing.assert_close(a.detach(), b.detach(), rtol=tolerance, atol=tolerance)


def test_no_value_is_read_on_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the meta device there is nothing to read: a step that would wait raises."""
    monkeypatch.setattr(finite, "HOST_READABLE", ())
    for oracle in (polar.PolarExpress(5), polar.Jordan(3), polar.Cans(3, form="gram")):
        params = [nn.Parameter(torch.empty(s, device="meta")) for s in ((6, 9), (6, 9), (9, 6))]
        for p in params:
            p.grad = torch.empty_like(p)
        optimizer = Muon(params, polar=oracle)
        optimizer.step()
        optimizer.step()


def test_dropped_layers_keep_everything() -> None:
    """keep=0.5: half of the moves, drawn from the turn and not from the random state; the others untouched."""
    params, gradients = problem([(4, 5)] * 6, 60)
    optimizer = Muon(half(params))
    state = torch.random.get_rng_state()
    for step in gradients:
        before = [p.detach().clone() for p in params]
        buffers = [optimizer.state[p]["momentum_buffer"].clone() if p in optimizer.state else None for p in params]
        counts = [int(optimizer.state[p]["step"]) if p in optimizer.state else 0 for p in params]
        train(optimizer, params, [step])
        for p, old, buffer, count in zip(params, before, buffers, counts, strict=True):
            moved = p in optimizer.state and int(optimizer.state[p]["step"]) > count
            assert moved != torch.equal(p, old)
            if not moved and buffer is not None:
                assert torch.equal(optimizer.state[p]["momentum_buffer"], buffer)
    moves = [int(optimizer.state[p]["step"]) for p in params]
    assert 0.4 < sum(moves) / 360 < 0.6
    assert len(set(moves)) > 1
    assert torch.equal(torch.random.get_rng_state(), state)


def test_dropping_resumes_where_it_was() -> None:
    params, gradients = problem([(4, 5)] * 4, 12, torch.float32)
    twin = [nn.Parameter(p.detach().clone()) for p in params]
    train(Muon(half(params)), params, gradients)
    first = Muon(half(twin))
    train(first, twin, gradients[:5])
    second = Muon(half(twin))
    second.load_state_dict(through_disk(first.state_dict()))
    train(second, twin, gradients[5:])
    assert all(torch.equal(a, b) for a, b in zip(params, twin, strict=True))


@pytest.mark.parametrize("keep", [0.0, 1.5])
def test_bad_keep(keep: float) -> None:
    with pytest.raises(ValueError, match=r"keep must lie in \(0, 1\]"):
        Muon([{"params": [nn.Parameter(torch.ones(2, 2))], "keep": keep}])


@pytest.mark.parametrize("option", ["capturable", "differentiable"])
def test_options_of_other_optimizers_are_refused_and_kept_in_groups(option: str) -> None:
    p = nn.Parameter(torch.ones(2, 2))
    with pytest.raises(TypeError, match=option):
        Muon([p], **{option: True})
    assert Muon([{"params": [p], option: True}]).param_groups[0][option] is True  # as torch's optimizers do


@pytest.mark.slow
def test_a_new_lr_does_not_recompile() -> None:
    params, gradients = problem([(6, 9)], 6, torch.float32)
    twin = [nn.Parameter(p.detach().clone()) for p in params]
    optimizer, other = Muon(params, lr=torch.tensor(0.1)), Muon(twin, lr=torch.tensor(0.1))
    compiles: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        compiles.append(len(inputs))
        return graph.forward

    torch._dynamo.reset()
    step = torch.compile(optimizer.step, backend=backend)
    for k, gradient in enumerate(gradients):
        for chosen, p in ((optimizer, params[0]), (other, twin[0])):
            chosen.param_groups[0]["lr"].fill_(0.1 / (k + 1))
            p.grad = gradient[0].clone()
        step()
        other.step()
        if k == 2:
            warm = len(compiles)
    assert len(compiles) == warm
    torch.testing.assert_close(params[0].detach(), twin[0].detach(), rtol=1e-5, atol=1e-6)


def test_threads_do_not_meet() -> None:
    """Eight optimizers in eight threads end where they end alone."""

    def ends(seed: int) -> torch.Tensor:
        p = nn.Parameter(torch.ones(12, 20))
        optimizer = Muon([p], polar="zolotarev:2" if seed % 2 else "polar-express:5")
        for k in range(10):
            p.grad = torch.randn(12, 20, generator=torch.Generator().manual_seed(100 * seed + k))
            optimizer.step()
        return p.detach()

    together: dict[int, torch.Tensor] = {}
    threads = [threading.Thread(target=lambda s=s: together.update({s: ends(s)})) for s in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(together[seed], ends(seed)) for seed in range(8))


def test_nothing_leaks() -> None:
    params, gradients = problem([(6, 9), (9, 6)], 30, torch.float32)
    optimizer = Muon(params, sample_every=1)
    train(optimizer, params, gradients[:5])
    gc.collect()
    before = sum(type(o) in (torch.Tensor, nn.Parameter) for o in gc.get_objects())
    train(optimizer, params, gradients[5:])
    gc.collect()
    assert sum(type(o) in (torch.Tensor, nn.Parameter) for o in gc.get_objects()) <= before + 2
    gone = weakref.ref(optimizer)
    del optimizer
    gc.collect()
    assert gone() is None


def test_state_hooks() -> None:
    params, gradients = problem([(3, 4)], 1)
    optimizer = Muon(params)
    train(optimizer, params, gradients)
    calls: list[str] = []
    optimizer.register_state_dict_pre_hook(lambda *_: calls.append("before save"))
    optimizer.register_state_dict_post_hook(lambda *_: calls.append("after save"))
    optimizer.register_load_state_dict_pre_hook(lambda *_: calls.append("before load"))
    optimizer.register_load_state_dict_post_hook(lambda *_: calls.append("after load"))
    optimizer.load_state_dict(optimizer.state_dict())
    assert calls == ["before save", "after save", "before load", "after load"]


def test_partial_and_older_checkpoints() -> None:
    """A parameter without state starts afresh; a file without counters or newer options loads."""
    params, gradients = problem([(3, 4), (4, 3)], 4, torch.float32)
    optimizer = Muon(params)
    train(optimizer, params, gradients[:2])
    saved = through_disk(optimizer.state_dict())
    del saved["state"][1]
    for key in ("keep", "turn", "length", "momentum_init"):
        del saved["param_groups"][0][key]
    del saved["state"][0]["step"], saved["state"][0]["skipped"]
    resumed = Muon(params)
    resumed.load_state_dict(saved)
    train(resumed, params, gradients[2:])
    assert resumed.param_groups[0]["keep"] == 1.0
    assert int(resumed.state[params[0]]["step"]) == 3  # one unknown, two made
    assert int(resumed.state[params[1]]["step"]) == 2


def test_a_ball_that_raises_leaves_nothing_half_done() -> None:
    class Broken(lmo.Sign):
        name = "broken"

        def unit_direction(self, m: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("no answer")

    params, gradients = problem([(3, 4), (4, 3)], 2)
    groups = [{"params": [params[0]]}, {"params": [params[1]], "ball": Broken()}]
    optimizer = LMOOptimizer(groups, 0.1, 0.9, ball="sign")
    for p, g in zip(params, gradients[0], strict=True):
        p.grad = g
    before = [p.detach().clone() for p in params]
    with pytest.raises(RuntimeError, match="no answer"):
        optimizer.step()
    assert all(torch.equal(p, b) for p, b in zip(params, before, strict=True))
    assert not any(optimizer.state[p]["momentum_buffer"].any() for p in params)
    assert {int(optimizer.state[p]["step"]) for p in params} == {0}


def test_steps_within_any_memory_limit() -> None:
    shapes = [(6, 9), (9, 6), (6, 9), (12, 12), (3, 5)]
    ends = []
    for limit in (0, 2000, 2**30):
        params, gradients = problem(shapes, 4)
        train(Muon(params, memory_limit=limit), params, gradients)
        ends.append(params)
    for a, b, c in zip(*ends, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
        torch.testing.assert_close(a, c, rtol=0, atol=1e-12)


class Recorder:
    """Stands for a logger: keeps what it is given."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self.calls.append((tag, value, step))

    def log(self, values: dict[str, float], step: int) -> None:
        self.calls += [(tag, value, step) for tag, value in values.items()]


def test_loggers_get_a_dozen_scalars_and_the_rest_on_request() -> None:
    params, gradients = problem([(3, 4), (4, 3)], 1)
    optimizer = Muon(params, sample_every=1)
    train(optimizer, params, gradients)
    expected = [(tag, value, 7) for tag, value in flat_stats(optimizer).items()]
    assert {tag for tag, _, _ in expected} >= {"optimizer/gap/worst", "optimizer/update_ratio/mean", "optimizer/lr/lmo"}
    assert len(expected) <= 12
    rows = flat_stats(optimizer, every=True)
    assert rows.keys() >= {"optimizer/0/gap", "optimizer/1/update_rms", "optimizer/0/lr", "optimizer/gap/worst"}
    assert rows["optimizer/gap/worst"] == max(rows["optimizer/0/gap"], rows["optimizer/1/gap"])
    for adapter in (to_tensorboard, to_wandb):
        recorder = Recorder()
        adapter(recorder, optimizer, 7)
        assert recorder.calls == expected


def test_a_real_tensorboard_writer(tmp_path: Any) -> None:
    tensorboard = pytest.importorskip("torch.utils.tensorboard", reason="the extra `tracking` is not installed")
    params, gradients = problem([(3, 4)], 1)
    optimizer = Muon(params, sample_every=1)
    train(optimizer, params, gradients)
    with tensorboard.SummaryWriter(tmp_path) as writer:
        to_tensorboard(writer, optimizer, 1)
    assert next(tmp_path.iterdir()).stat().st_size > 100


@pytest.mark.parametrize("readable", [("cpu",), ()], ids=["host", "accelerator"])
@pytest.mark.parametrize("which", ["parameter", "gradient"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_adamw_takes_any_strides(
    which: str, readable: tuple[str, ...], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's fused kernel walks through memory: a piece of a column, or a transposed gradient, is not for it."""
    monkeypatch.setattr(finite, "HOST_READABLE", readable)
    ends = []
    for strided in (False, True):
        torch.manual_seed(0)
        start, *gradients = (torch.randn(5, 4, dtype=dtype) for _ in range(4))
        odd = torch.empty(5, 9, dtype=dtype)[:, 1:5]
        p = nn.Parameter(odd.copy_(start) if strided and which == "parameter" else start.clone())
        optimizer = Muon([{"params": [p], "algorithm": "adamw", "lr": 0.1}])
        for g in gradients:
            p.grad = g.t().contiguous().t() if strided and which == "gradient" else g.clone()
            optimizer.step()
        ends.append(p.detach().clone())
    relative, absolute = (1e-5, 1e-6) if dtype == torch.float32 else (0.0, 1e-12)
    torch.testing.assert_close(ends[0], ends[1], rtol=relative, atol=absolute)


def test_a_bad_gradient_on_the_host_keeps_the_flags_of_other_devices() -> None:
    """With parameters on two devices, those of the accelerator are still skipped by their flags."""
    params = [nn.Parameter(torch.zeros(4, 6, device=device)) for device in ("cpu", "meta")]
    for p in params:
        p.grad = torch.full_like(p, torch.nan)
    optimizer = Muon(params)
    plan, _ = optimizer._planned([(optimizer.param_groups[0], p) for p in params], None)
    (batch,) = (batch for chunk in plan.chunks for batch in chunk)
    assert batch.members[0].p is params[1]
    assert batch.flags is not None
    assert float(optimizer.state[params[0]]["skipped"]) == 1.0
