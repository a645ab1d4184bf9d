"""Half precision on an accelerator: what `auto` runs there keeps its bound, with products as tensor cores make them."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
import torch
from torch import Tensor

from inexact_muon import polar
from inexact_muon.polar.iteration import factors_of, run
from inexact_muon_lab.tune import spectra
from matrices import SPECTRA
from tensor_cores import TensorCores
from tiers import at_length

SQUARE, WIDE = "polar-express(steps=4, degree=9)", "polar-express(steps=5, degree=(5, 5, 5, 5, 9))"
QUINTICS, NINTHS = "polar-express(steps=4, lower=0.003)", "polar-express(steps=3, lower=0.003, degree=9)"
CHOSEN = {
    "accurate": {(SQUARE, "direct", ()), (WIDE, "gram", (2, 4))},
    "fast": {(QUINTICS, "direct", ()), (NINTHS, "direct", ()), (QUINTICS, "gram", (2,))},
}
"""Method, form and restarts, all in float16, of every shape on a device with fast float16."""

FLOAT16 = {"direct": 0.005, "gram": 0.02}
"""Form -> bound on what float16 products with float32 accumulation add to the overshoot of a method whose error bound
is at most 0.22; the gap changes by at most this plus twice the error bound. Emulation of the spectra here, recorded
momentum and shapes up to 1024 x 4096 gave at most 0.001 and 0.014."""

MORE = {
    "square-law": lambda n: np.arange(1, n + 1) ** -2.0,
    "two large": lambda n: np.concatenate(([1.0, 1.0], np.full(n - 2, 1e-3))),
    **{
        name: lambda n, name=name: np.exp(
            np.interp(np.linspace(0, 1, n), np.linspace(0, 1, 64), np.log(recorded(name)))
        )
        for name in ("gpt-early", "gpt-late", "cnn-mid")
    },
}
"""Harder ones, and spectra of recorded momentum."""

ALL = {**SPECTRA, **MORE}


def recorded(name: str) -> np.ndarray:
    """64 values of the first layer of a recorded momentum, the largest 1."""
    values = spectra.resolve(name)[1][0].values
    return values[np.linspace(0, len(values) - 1, 64).astype(int)] / values[0]


@lru_cache(maxsize=8)
def bases(n: int, m: int, count: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(n + m)
    u, v = (torch.randn(count, side, n, generator=generator, dtype=torch.float64) for side in (n, m))
    return torch.linalg.qr(u)[0], torch.linalg.qr(v)[0].mT


def judged(method: polar.PolarMethod, n: int, m: int, spectrum: str, count: int = 1) -> tuple[float, float, float]:
    """(largest overshoot, largest gap where the bound holds, largest difference of the gap from that in float64)"""
    u, vh = bases(n, m, count)
    s = torch.from_numpy(np.array(ALL[spectrum](n)))
    exact = (u * s) @ vh
    with TensorCores():
        z = method(exact.float()).double()
    twin = replace(method, dtype=torch.float64, form="direct")(exact)
    gap, expected = (1.0 - (exact * x).sum((-2, -1)) / s.sum() for x in (z, twin))
    inside = float(s.min() / (s**4).sum() ** 0.25) >= method.map.lower
    overshoot = float(torch.linalg.matrix_norm(z, 2).max())
    return overshoot, float(gap.abs().max()) if inside else 0.0, float((gap - expected).abs().max())


def check(method: polar.PolarMethod, n: int, m: int, spectrum: str, count: int = 1) -> None:
    bound = method.error_bound(method.map.lower)
    term = FLOAT16["gram" if method.runs_gram(n, m, torch.float16) else "direct"]
    overshoot, gap, moved = judged(method, n, m, spectrum, count)
    assert overshoot <= 1.0 + bound + term, (n, m, spectrum)
    assert gap <= bound + term, (n, m, spectrum)
    assert moved <= 2.0 * bound + term, (n, m, spectrum)


def chosen(n: int, m: int, target: str = "accurate") -> polar.PolarMethod:
    return polar.Auto(target).at(n, m, "cuda")


def candidates(n: int, m: int) -> list[polar.PolarMethod]:
    """What auto chooses here for any target, and what it chooses for larger matrices of this aspect."""
    return list(dict.fromkeys(chosen(k * n, k * m, target) for target in CHOSEN for k in (1, 64)))


@pytest.mark.parametrize("target", CHOSEN)
def test_what_auto_chooses_is_what_is_measured(target: str) -> None:
    found = set()
    for n in (8, 64, 100, 512, 768, 1024, 1408, 2048, 4096, 8192):
        for aspect in (1.0, 1.2, 1.45, 1.55, 2.0, 3.0, 3.5, 4.0, 8.0, 64.0):
            method = chosen(n, int(n * aspect), target)
            assert method.dtype == torch.float16
            gram = method.runs_gram(n, int(n * aspect), torch.float16)
            again = tuple(range(2, len(method.map.coefficients), 2)) if gram else ()
            found.add((str(replace(method, dtype=None)), "gram" if gram else "direct", again))
    assert found == CHOSEN[target]


@pytest.mark.parametrize("spectrum", ALL)
@pytest.mark.parametrize(("n", "m", "count"), [(12, 12, 60), (12, 30, 60), (48, 60, 12), (48, 96, 12), (96, 320, 4)])
def test_what_auto_chooses_stays_within_its_bound(n: int, m: int, count: int, spectrum: str) -> None:
    for method in candidates(n, m):
        check(method, n, m, spectrum, count)


@pytest.mark.slow
@pytest.mark.parametrize("spectrum", ALL)
@pytest.mark.parametrize("shape", at_length([(256, 1024)], (512, 512), (768, 3072), (1024, 4096)), ids=str)
def test_what_auto_chooses_stays_within_its_bound_at_real_sizes(shape: tuple[int, int], spectrum: str) -> None:
    n, m = shape
    for method in candidates(n, m):
        check(method, n, m, spectrum)


@pytest.mark.parametrize("steps", [5, 6, 7, 8])
def test_quintics_in_gram_form(steps: int) -> None:
    """What `cheapest` may choose for other wishes."""
    for spectrum in ALL:
        check(polar.PolarExpress(steps, dtype=torch.float16), 24, 60, spectrum, 20)


def test_a_restart_after_the_third_step_diverges() -> None:
    """Why the rule is every second step: 3 is sound on most matrices, and on few the answer is off by orders."""
    method = polar.PolarExpress(6)
    u, vh = bases(64, 256, 12)
    x = ((u * torch.from_numpy(SPECTRA["power-law"](64))) @ vh).float()
    with TensorCores():
        forms = [factors_of(method.map, again) for again in ((3,), (2, 4))]
        answers = [run([x], form, torch.float16, "schatten4")[0].float() for form in forms]
    norms = [float(torch.linalg.matrix_norm(z, 2).max()) for z in answers]
    assert norms[0] > 10.0
    assert norms[1] < 1.01


def test_float64_input_stays_in_float64() -> None:
    auto = polar.Auto(chosen=((12, 30, "cpu", chosen(12, 30)),))
    m = ((bases(12, 30, 1)[0] * torch.from_numpy(SPECTRA["gaussian"](12))) @ bases(12, 30, 1)[1])[0]
    assert auto.compute_dtype(m) == torch.float64
    assert auto.compute_dtype(m.float()) == torch.float16
    torch.testing.assert_close(auto(m), polar.parse(SQUARE)(m), rtol=0, atol=0)


@pytest.mark.parametrize(("capability", "dtype"), [((6, 1), None), ((7, 0), "float16"), ((9, 0), "float16")])
def test_fast_float16_is_a_matter_of_capability(
    capability: tuple[int, int], dtype: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
    found = polar.cheapest(768, 3072, device="cuda")
    assert found.dtype == (getattr(torch, dtype) if dtype else None)
    device = torch.device("cuda")
    assert found.computes_on(device) == (torch.float16 if dtype else torch.float32)
    assert found.flops_on(768, 3072, device) == found.flops(768, 3072), "priced in the form that runs"


def test_flops_follow_the_device() -> None:
    """bfloat16 on a GPU is direct, float32 on a CPU is Gram; a Gram form that is asked for is float16 there."""
    method = polar.PolarExpress(6)
    cpu, gpu = (method.flops_on(64, 256, device) / (2 * 64**3) for device in ("cpu", "cuda"))
    assert (cpu, gpu) == (39, 54)
    assert replace(method, form="gram").computes_on(torch.device("cuda")) == torch.float16
    assert polar.PolarExpress(4, degree=9, form="gram").computes_on(torch.device("cuda")) == torch.float32
    assert polar.Auto().flops_on(64, 256, "cuda") == chosen(64, 256).flops(64, 256)
