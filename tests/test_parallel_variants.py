"""MuonBP and EF21-Muon do what their equations say, and report the inexactness that they incur."""

from __future__ import annotations

from functools import cache
from math import inf
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from inexact_muon import Muon, lmo
from inexact_muon.optim import EF21Muon
from inexact_muon.parallel import COMPRESSORS, Compressor, Identity, LowRank, Natural, TopK, parse
from ranks import on_ranks

STEPS, WORLD, LR = 12, 3, 0.05
SHAPES = ((12, 20), (24, 10), (7, 7))
OPTIONS: dict[str, Any] = {"lr": LR, "momentum": 0.8, "weight_decay": 0.1, "nesterov": True, "adjust_lr_fn": "none"}
COMPRESSIONS = {
    "identity": (Identity(), Identity()),
    "top": (TopK(0.2), TopK(0.5)),
    "rank": (LowRank(2), LowRank(3)),
    "natural": (Natural(), Natural()),
    "mixed": (TopK(0.3), Identity()),
}
BALL = lmo.Spectral()


@cache
def draw(seed: int, shape: tuple[int, ...]) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gradient(step: int, worker: int, i: int) -> Tensor:
    """A common part, and one of the worker's own."""
    return draw(step, SHAPES[i]) + 0.5 * draw(1000 * (worker + 1) + step, SHAPES[i])


def start() -> list[Tensor]:
    return [draw(99, shape).clone() for shape in SHAPES]


def seen_by(buffer: Tensor, g: Tensor) -> Tensor:
    """Nesterov's mixture after the buffer has been updated in place."""
    mu = OPTIONS["momentum"]
    buffer.mul_(mu).add_(g, alpha=1 - mu)
    return mu * buffer + (1 - mu) * g


def ef21_twin(up: Compressor, down: Compressor, workers: int) -> tuple[list[Tensor], list[Any]]:
    """Equation by equation in one process: parameters after all steps, and the inexactness at the last one."""
    ends, last = [], []
    for i, w in enumerate(start()):
        x, total = w.clone(), torch.zeros_like(w)
        momenta = [torch.zeros_like(w) for _ in range(workers)]
        told = [torch.zeros_like(w) for _ in range(workers)]
        for step in range(STEPS):
            true = torch.zeros_like(w)
            for j in range(workers):
                seen = seen_by(momenta[j], gradient(step, j, i))
                change = up(seen - told[j])
                told[j] = told[j] + change
                total = total + change / workers
                true = true + seen / workers
            d_hat = BALL(total)
            x = (1 - LR * OPTIONS["weight_decay"]) * x + LR * d_hat
            w = w + down(x - w)
        ends.append(w)
        last.append(measure_any(true, d_hat))
    return ends, last


def measure_any(m: Tensor, d_hat: Tensor) -> tuple[float, float, float]:
    dual = BALL.dual_norm(m)
    return (
        float(BALL.distance(m, d_hat)),
        float(1 + (m * d_hat).sum() / dual),
        float(BALL.norm(d_hat)),
    )


def ef21(rank: int, world: int) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for name, (up, down) in COMPRESSIONS.items():
        params = [nn.Parameter(p) for p in start()]
        optimizer = EF21Muon(params, up=up, down=down, sample_every=STEPS - 1, sample_share=inf, **OPTIONS)
        for step in range(STEPS):
            for i, p in enumerate(params):
                p.grad = gradient(step, rank, i)
            optimizer.step()
        results[name] = [p.detach() for p in params], optimizer.inexactness()
    results["checkpoint"] = checkpoint(rank, world)
    return results


def checkpoint(rank: int, world: int) -> Any:
    """Four steps, a synchronised checkpoint, four more; then the same from the checkpoint."""
    params = [nn.Parameter(p) for p in start()]
    optimizer = EF21Muon(params, up="low-rank:2", **OPTIONS)

    def steps(first: int, last: int, these: list[Any], chosen: EF21Muon) -> None:
        for step in range(first, last):
            for i, p in enumerate(these):
                p.grad = gradient(step, rank, i)
            chosen.step()

    steps(0, 4, params, optimizer)
    with pytest.raises(RuntimeError, match=r"call optimizer.synchronise\(\) on all of them"):
        optimizer.state_dict()
    optimizer.synchronise()
    saved = {key: dict(value) for key, value in optimizer.state_dict()["state"].items()}
    saved = {key: {k: v.clone() for k, v in value.items()} for key, value in saved.items()}
    groups = optimizer.state_dict()["param_groups"]
    others = [nn.Parameter(p.detach().clone()) for p in params]
    steps(4, 8, params, optimizer)
    again = EF21Muon(others, up="low-rank:2", **OPTIONS)
    again.load_state_dict({"state": saved, "param_groups": groups})
    steps(4, 8, others, again)
    assert all(torch.equal(a, b) for a, b in zip(params, others, strict=True))
    return saved


@pytest.mark.slow
def test_ef21_is_its_equations() -> None:
    ranks = on_ranks(ef21, WORLD)
    for name, (up, down) in COMPRESSIONS.items():
        expected, last = ef21_twin(up, down, WORLD)
        for found, inexactness in (rank[name] for rank in ranks):
            for i, (a, b) in enumerate(zip(expected, found, strict=True)):
                assert float((a - b).abs().max()) <= 1e-10, (name, SHAPES[i])
                values = inexactness[str(i)]
                assert (values.delta, values.gap, values.overshoot) == pytest.approx(last[i], rel=1e-6, abs=1e-9), name
    for key, state in ranks[0]["checkpoint"].items():
        for other in (rank["checkpoint"][key] for rank in ranks):
            assert state.keys() == other.keys()
            assert all(torch.equal(state[k], other[k]) for k in state), "a synchronised state is the same everywhere"


@pytest.mark.slow
def test_ef21_with_identity_is_muon() -> None:
    params = [nn.Parameter(p) for p in start()]
    optimizer = Muon(params, **OPTIONS)
    for step in range(STEPS):
        for i, p in enumerate(params):
            p.grad = torch.stack([gradient(step, j, i) for j in range(WORLD)]).mean(0)
        optimizer.step()
    expected, _ = ef21_twin(Identity(), Identity(), WORLD)
    for a, b in zip(params, expected, strict=True):
        assert float((a.detach() - b).abs().max()) <= 1e-12


def test_ef21_in_one_process_needs_no_ranks() -> None:
    for up, down in COMPRESSIONS.values():
        params = [nn.Parameter(p) for p in start()]
        optimizer = EF21Muon(params, up=up, down=down, **OPTIONS)
        for step in range(STEPS):
            for i, p in enumerate(params):
                p.grad = gradient(step, 0, i)
            optimizer.step()
        assert optimizer.team.wire.sent == 0
        optimizer.synchronise()
        optimizer.state_dict()
        for a, b in zip(params, ef21_twin(up, down, 1)[0], strict=True):
            assert float((a.detach() - b).abs().max()) <= 1e-10


def rows(shape: tuple[int, ...], world: int) -> list[tuple[int, int]]:
    chunk = -(-shape[0] // world)
    return [(min(r * chunk, shape[0]), min((r + 1) * chunk, shape[0])) for r in range(world)]


def block_twin(world: int, period: int, block_lr: float) -> tuple[list[Tensor], list[Any]]:
    ends, last = [], []
    for i, w in enumerate(start()):
        buffer = torch.zeros_like(w)
        for step in range(STEPS):
            seen = seen_by(buffer, gradient(step, 0, i))
            full = step % period == 0
            blocks = [(0, len(w))] if full else rows(w.shape, world)
            d_hat = torch.cat([BALL(seen[a:b]) for a, b in blocks if b > a])
            w = (1 - LR * OPTIONS["weight_decay"]) * w + LR * (1.0 if full else block_lr) * d_hat
        ends.append(w)
        last.append(measure_any(seen, d_hat))
    return ends, last


def muon_bp(rank: int, world: int) -> list[Any]:
    mesh = init_device_mesh("cpu", (world,))
    results = []
    for text in ("block-periodic:4", "block-periodic(4, block_lr=0.5)"):
        place = lambda x: distribute_tensor(x.clone(), mesh, [Shard(0)], src_data_rank=None)  # noqa: E731
        params = [nn.Parameter(place(p)) for p in start()]
        optimizer = Muon(params, strategy=text, sample_every=STEPS - 1, sample_share=inf, **OPTIONS)
        for step in range(STEPS):
            for i, p in enumerate(params):
                p.grad = place(gradient(step, 0, i))
            optimizer.step()
        results.append(([p.detach().full_tensor() for p in params], optimizer.inexactness()))
    return results


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3])
def test_muon_bp_is_its_equations(world: int) -> None:
    twins = [block_twin(world, 4, block_lr) for block_lr in (1.0, 0.5)]
    for found in on_ranks(muon_bp, world):
        for (expected, last), (params, inexactness) in zip(twins, found, strict=True):
            for i, (a, b) in enumerate(zip(expected, params, strict=True)):
                assert float((a - b).abs().max()) <= 1e-10, SHAPES[i]
                values = inexactness[str(i)]
                assert (values.delta, values.gap, values.overshoot) == pytest.approx(last[i], rel=1e-6, abs=1e-9)
                assert values.overshoot <= world**0.5 * 1.2, "stacked blocks of norm 1"
                assert values.delta > 0.2, "another update than Muon's"


@settings(max_examples=40)
@given(
    st.sampled_from([TopK(0.1), TopK(1.0), LowRank(1), LowRank(3), Natural(), Identity()]),
    st.integers(1, 9),
    st.integers(1, 9),
    st.sampled_from([torch.float32, torch.float64]),
    st.integers(0, 10**6),
)
def test_compressors_are_contractive(c: Compressor, n: int, m: int, dtype: torch.dtype, seed: int) -> None:
    x = torch.randn(n, m, generator=torch.Generator().manual_seed(seed), dtype=dtype)
    y = c(x)
    assert (y.shape, y.dtype) == (x.shape, x.dtype)
    kept = {"top-k": getattr(c, "share", 0.0), "natural": 8 / 9, "identity": 1.0}.get(c.name, 0.0)
    assert float((y - x).square().sum()) <= (1 - kept) * float(x.square().sum()) * (1 + 1e-5) + 1e-12
    assert torch.equal(c(torch.zeros_like(x)), torch.zeros_like(x))
    assert torch.equal(c(x), y), "the same bits each time"
    message = c.encode(x)
    assert [(a.shape, a.dtype) for a in message] == [(b.shape, b.dtype) for b in c.empty(x)]


def test_low_rank_keeps_what_has_that_rank() -> None:
    x = draw(1, (30, 4)) @ draw(2, (4, 20))
    torch.testing.assert_close(LowRank(4)(x), x)
    s = torch.linalg.svdvals(draw(3, (30, 20)))
    error = torch.linalg.matrix_norm(LowRank(4)(draw(3, (30, 20))) - draw(3, (30, 20)))
    assert float(error) <= 1.2 * float(s[4:].square().sum().sqrt()), "nearly the best of its rank"


def test_natural_is_the_nearest_power_of_two() -> None:
    x = torch.tensor([0.0, 1.0, -1.4, 1.6, 3e-39, 1e-30, -0.75, 0.7])
    expected = torch.tensor([0.0, 1.0, -1.0, 2.0, 0.0, 2.0**-100, -1.0, 0.5])
    assert torch.equal(Natural()(x), expected)
    code, signs, rest = Natural().encode(torch.ones(64))
    assert (code.numel() + signs.numel(), rest.numel()) == (64 * 9 // 8, 0)


@pytest.mark.parametrize("text", ["auto", "owner-rank", "block-periodic(4, block_lr=0.5)"])
def test_text_and_value(text: str) -> None:
    assert parse(str(parse(text))) == parse(text)


def test_bad_input_is_named() -> None:
    p = nn.Parameter(torch.eye(3))
    with pytest.raises(ValueError, match="period must be an integer of at least 1, got 0"):
        Muon([p], strategy="block-periodic:0")
    with pytest.raises(ValueError, match=r"unknown name 'owner-ranks'.*did you mean 'owner-rank'"):
        Muon([p], strategy="owner-ranks")
    with pytest.raises(ValueError, match=r"write EF21Muon\(params, lr, up=..., down=...\)"):
        Muon([p], strategy="compressed(up=natural)")
    with pytest.raises(ValueError, match=r"unknown name 'naturl'.*did you mean 'natural'"):
        EF21Muon([p], up="naturl")
    with pytest.raises(TypeError, match="expected a compressor or its text, such as low-rank:8, got int"):
        EF21Muon([p], up=8)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="strategy must be a Strategy or its text, got int"):
        Muon([p], strategy=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="rank must be at least 1"):
        LowRank(0)
    with pytest.raises(ValueError, match=r"share must lie in \(0, 1\]"):
        TopK(0.0)
    assert set(COMPRESSORS) == {"identity", "top-k", "low-rank", "natural"}
