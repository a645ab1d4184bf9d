"""float16 and bfloat16 parameters: sums in float32, gradients judged in the dtype of the state."""

import pytest
import torch
from torch import nn

from inexact_muon import Muon, polar
from inexact_muon.optim import LMOOptimizer

HALVES = (torch.float16, torch.bfloat16)
LENGTHS = ("steepest", "clipped", "smooth(l0=1.0)", "smooth(l0=0.0, l1=2.0)")
BALLS = ("spectral", "sign", "euclidean", "row-norm", "nuclear")


def stepped(
    gradient: torch.Tensor, dtype: torch.dtype, steps: int = 2, view: str = "whole", **options: object
) -> torch.Tensor:
    p = nn.Parameter(torch.ones(gradient.shape, dtype=dtype))
    optimizer = LMOOptimizer([{"params": [p], "view": view}], 1e-6, 0.9, **options)  # type: ignore[arg-type]
    for _ in range(steps):
        p.grad = gradient.to(dtype)
        optimizer.step()
    return p.detach()


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("ball", BALLS)
def test_dual_norms_beyond_the_largest_half(ball: str, length: str, dtype: torch.dtype) -> None:
    """<m, z> is about 1e6 here, more than float16 holds: the step is the one of float32 up to rounding."""
    gradient = 4e3 * torch.randn(24, 32, generator=torch.Generator().manual_seed(0)).to(dtype).float()
    half = stepped(gradient, dtype, ball=ball, length=length)
    full = stepped(gradient, torch.float32, ball=ball, length=length)
    assert half.dtype == dtype
    assert bool(half.isfinite().all())
    moved = (full - 1.0).abs().max()
    torch.testing.assert_close(half.float(), full, rtol=0.0, atol=float(2 * torch.finfo(dtype).eps + 0.02 * moved))


def test_parts_of_a_parameter_have_lengths_of_their_own() -> None:
    gradient = torch.cat([scale * torch.ones(4, 8) for scale in (1e-3, 3e4)])
    half = stepped(gradient, torch.float16, steps=1, ball="sign", length="steepest", view="split(2)")
    full = stepped(gradient.half().float(), torch.float32, steps=1, ball="sign", length="steepest", view="split(2)")
    torch.testing.assert_close(half.float(), full, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("algorithm", ["lmo", "adamw"])
@pytest.mark.parametrize("started", [False, True])
def test_a_gradient_that_overflows_in_the_state_raises(algorithm: str, started: bool) -> None:
    p = nn.Parameter(torch.ones(3, 4))
    groups = [{"params": [p], "algorithm": algorithm}]
    optimizer = LMOOptimizer(groups, 0.1, 0.9, ball="sign", state_dtype=torch.float16, on_nonfinite="raise")
    if started:
        p.grad = torch.ones(3, 4)
        optimizer.step()
    before = p.detach().clone()
    p.grad = torch.full((3, 4), 1e5)
    with pytest.raises(ValueError, match="as float16, is not finite; nothing was changed"):
        optimizer.step()
    assert torch.equal(p.detach(), before)
    p.grad = torch.full((3, 4), 2.0)
    optimizer.step()
    assert not torch.equal(p.detach(), before)


def test_a_wide_state_takes_what_a_wide_gradient_holds() -> None:
    p = nn.Parameter(torch.ones(3, 4))
    optimizer = LMOOptimizer([p], 0.1, 0.9, ball="sign", on_nonfinite="raise")
    p.grad = torch.full((3, 4), 1e5)
    optimizer.step()
    assert not torch.equal(p.detach(), torch.ones(3, 4))


@pytest.mark.parametrize("dtype", ["float16", torch.int32, torch.complex64, torch.float8_e4m3fn, 16, object()])
def test_a_state_dtype_that_no_step_can_use_is_refused_at_once(dtype: object) -> None:
    for made in (LMOOptimizer, Muon):
        options = {"ball": "sign", "momentum": 0.9} if made is LMOOptimizer else {}
        with pytest.raises(ValueError, match=r"state_dtype must be None or one of torch\.float64, torch\.float32"):
            made([nn.Parameter(torch.ones(2, 2))], lr=0.1, state_dtype=dtype, **options)


# AdamW's second moment: g^2 overflows float16 at 256 and vanishes below 2e-4 ------------------------------------------


def adamw(gradient: float, param: torch.dtype, state: torch.dtype | None, steps: int = 5) -> tuple[nn.Parameter, Muon]:
    p = nn.Parameter(torch.ones(3, 4, dtype=param))
    optimizer = Muon([{"params": [p], "algorithm": "adamw"}], lr=0.01, weight_decay=0.0, state_dtype=state)
    for step in range(steps):
        p.grad = torch.full_like(p, gradient * (1.0 - 0.1 * step))
        optimizer.step()
    return p, optimizer


GRADIENTS = (0.0, 1e-4, 1.0, 300.0, 1e4, 6e4)


@pytest.mark.parametrize("param", [torch.float32, *HALVES], ids=str)
@pytest.mark.parametrize("gradient", GRADIENTS)
def test_adamw_with_a_float16_state_is_that_of_float32(gradient: float, param: torch.dtype) -> None:
    half, optimizer = adamw(gradient, param, torch.float16)
    full = adamw(gradient, torch.float32, None)[0].detach()
    assert float(optimizer.state[half]["skipped"]) == 0
    assert optimizer.state[half]["exp_avg"].dtype == torch.float16
    # Rounding of the weights at each of five steps, and of the moments.
    atol = 5 * torch.finfo(param).eps + 0.02 * float((1.0 - full).abs().max())
    torch.testing.assert_close(half.detach().float(), full, rtol=0.0, atol=atol)


def test_a_loaded_second_moment_in_float16_becomes_float32() -> None:
    """As torch.optim.AdamW saves it for float16 parameters."""
    p = nn.Parameter(torch.ones(3, 4, dtype=torch.float16))
    theirs = torch.optim.AdamW([p], lr=0.01, betas=(0.9, 0.95), weight_decay=0.0)
    p.grad = torch.full_like(p, 10.0)
    theirs.step()
    ours = Muon([{"params": [p], "algorithm": "adamw"}], lr=0.01)
    ours.load_state_dict(theirs.state_dict())
    assert ours.state[p]["exp_avg"].dtype == torch.float16
    assert torch.equal(ours.state[p]["exp_avg_sq"], theirs.state[p]["exp_avg_sq"].float())
    before = p.detach().clone()
    for _ in range(3):
        p.grad = torch.full_like(p, 1e4)
        ours.step()
        assert bool((p < before).all()), "it has stopped"
        before = p.detach().clone()


def few_rows(n: int, m: int, count: int, seed: int) -> torch.Tensor:
    """Wide float16 matrices of two or three rows of nearly equal entries, the others zero: the entries of X X^T are
    equal, so that their rounding errors add up in its small eigenvalues."""
    generator = torch.Generator().manual_seed(seed)
    rows = 2 + seed % 2
    u, v = (torch.randn(count, side, rows, generator=generator, dtype=torch.float64) for side in (rows, m))
    u[..., 0], v[..., 0] = 1.0, 1.0
    lowest = 10.0 ** (-2.5 * torch.rand(count, 1, generator=generator, dtype=torch.float64))
    s = torch.cat((torch.ones(count, 1), lowest ** torch.rand(count, rows - 1, generator=generator)), -1)
    found = torch.zeros(count, n, m, dtype=torch.float16)
    found[:, :rows] = ((torch.linalg.qr(u)[0] * s[:, None]) @ torch.linalg.qr(v)[0].mT).half()
    return found


@pytest.mark.parametrize("steps", [4, 5, 6, 8])
@pytest.mark.parametrize("n", [3, 24])
def test_the_gram_form_in_float16_diverges_for_no_rows(n: int, steps: int) -> None:
    """Found by the adversarial search: NaN for five in two thousand, by a singular value of 0.09."""
    method = polar.PolarExpress(steps, dtype=torch.float16)
    assert method.runs_gram(n, 2 * n, torch.float16)
    end = method.map.image(1e-9, 1.0)[1]
    for seed in range(4):
        found = method(few_rows(n, 2 * n, 2000, seed)).float()
        assert bool(found.isfinite().all())
        assert float(torch.linalg.matrix_norm(found, 2).max()) <= end + 0.1
