"""Output layers are found in what the forward pass does, and nothing of the model changes while it is read."""

from __future__ import annotations

import copy
import functools
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inexact_muon import Muon
from inexact_muon.optim import routes
from output_cases import Body, W, square
from output_cases_odd import CASES


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("name", CASES)
def test_outputs_are_those_that_the_forward_pass_returns(name: str) -> None:
    make, expected = CASES[name]
    for device in ("cpu", "meta"):
        with torch.device(device):
            made = routes(make())
        assert {route.name for route in made if route.role == "head"} == set(expected)
        assert all(route.sure for route in made)
        matrices = [r for r in made if r.parameter.ndim > 1 and r.parameter.shape[0] > 1]
        assert all(route.algorithm == "lmo" for route in matrices if route.role not in ("head", "embedding"))


class Uncalled(Body):
    """The annotated transformer: the output layer is called by the training loop."""

    def forward(self, x: Tensor) -> Tensor:
        return self.features(x)


class Reduced(Body):
    """Layers in a call that is not followed."""

    def ends(self) -> None:
        self.layers, self.final = nn.ModuleList(square() for _ in range(2)), square()

    def forward(self, x: Tensor) -> Tensor:
        return self.final(functools.reduce(lambda h, layer: layer(h).relu(), self.layers, self.features(x)))


@pytest.mark.parametrize(
    ("model", "unsure"), [(Uncalled, {"proj.weight"}), (Reduced, {"layers.0.weight", "layers.1.weight"})]
)
def test_a_layer_that_is_never_called_is_unsure_with_one_warning(model: type[nn.Module], unsure: set[str]) -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        optimizer = Muon.for_model(model(), lr=0.02)
    assert optimizer.unsure == unsure
    assert len(seen) == 1
    assert all(name.split(".")[0] in str(seen[0].message) for name in unsure)


class Stateful(nn.Module):
    """Everything that running it would change."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.fc = square(), nn.BatchNorm1d(W), square()
        self.register_buffer("steps", torch.zeros(()))
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.steps += 1
        return self.fc(F.dropout(self.norm(self.first(x)), 0.5, self.training) + torch.randn_like(x))


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_not_run(training: bool) -> None:
    model = Stateful().train(training)
    before, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    assert [route.name for route in routes(model) if route.role == "head"] == ["fc.weight"]
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    assert (model.calls, model.training) == (0, training)


def compiled(model: nn.Module) -> nn.Module:
    return torch.compile(model, backend="eager")  # type: ignore[return-value]


def derived(model: nn.Module) -> nn.Module:
    """FSDP2 gives a module a class that is made while it runs."""
    model.__class__ = type(f"Sharded{type(model).__name__}", (type(model),), {})
    return model


@pytest.mark.parametrize("wrap", [compiled, derived, nn.DataParallel])
def test_wrapped_models(wrap: Any) -> None:
    made = routes(wrap(Stateful()))
    assert [r.name.rpartition("fc")[1] for r in made if r.role == "head"] == ["fc"]


def rearrange(x: Tensor, pattern: str, **sizes: int) -> Tensor:
    """Stands for einops."""
    raise NotImplementedError


class Attention(nn.Module):
    """Attention of diffusion models: query, key and value by one convolution."""

    def __init__(self, kind: type[nn.Conv2d] = nn.Conv2d) -> None:
        super().__init__()
        self.heads, self.norm = 4, nn.GroupNorm(1, W)
        self.to_qkv, self.to_out = kind(W, 3 * W, 1, bias=False), kind(W, W, 1)


class Chunked(Attention):
    def forward(self, x: Tensor) -> Tensor:
        qkv = self.to_qkv(self.norm(x)).chunk(3, dim=1)
        q, k, v = map(lambda t: rearrange(t, "b (h c) x y -> b h c (x y)", h=self.heads), qkv)  # noqa: C417
        return self.to_out(q * k * v)


class ChunkedByFunction(Attention):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = torch.chunk(self.to_qkv(x), 3, 1)
        return self.to_out(q * k * v)


class SplitBySize(Attention):
    def forward(self, x: Tensor) -> Tensor:
        qkv = self.to_qkv(x)
        q, k, v = qkv.split(self.to_out.in_channels, dim=1)
        return self.to_out(q * k * v)


class Reshaped(Attention):
    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        q, k, v = self.to_qkv(x).view(b, 3, self.heads, c // self.heads, h * w).unbind(1)
        return self.to_out(q * k * v)


class Rearranged(Attention):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = rearrange(self.to_qkv(x), "b (qkv heads c) h w -> qkv b heads c (h w)", heads=self.heads, qkv=3)
        return self.to_out(q * k * v)


class Inner(nn.Module):
    def forward(self, qkv: Tensor) -> Tensor:
        q, k, v = qkv.chunk(3, dim=1)
        return q * k * v


class CutInside(Attention):
    """Guided diffusion: a module without parameters cuts."""

    def __init__(self) -> None:
        super().__init__(nn.Conv1d)  # type: ignore[arg-type]
        self.attention = Inner()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.to_out(self.attention(self.to_qkv(self.norm(x))))


class ChannelsLast(Attention):
    """Wan's video autoencoder: channels are moved to the end and cut there."""

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        qkv = self.to_qkv(self.norm(x))
        qkv = qkv.reshape(b, 1, c * 3, -1)
        qkv = qkv.permute(0, 1, 3, 2).contiguous()
        q, k, v = qkv.chunk(3, dim=-1)
        return x + self.to_out((q * k * v).squeeze(1).permute(0, 2, 1).reshape(b, c, h, w))


class Permuted(Attention):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.to_qkv(x).permute((0, 2, 3, 1)).chunk(3, -1)
        return self.to_out((q * k * v).permute(0, 3, 1, 2))


class CutAlongWidth(Attention):
    """Not the channels."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.to_qkv(x).contiguous().chunk(3, dim=-1)
        return self.to_out(q * k * v)


class ByHead(Attention):
    """Guided diffusion's older attention: query, key and value of each head in turn, which is not known."""

    def forward(self, x: Tensor) -> Tensor:
        b, c, n = x.shape
        q, k, v = self.to_qkv(x).reshape(b * self.heads, 3 * c // self.heads, n).split(c // self.heads, dim=1)
        return self.to_out(q * k * v)


def weight_of(make: type[Attention]) -> Any:
    blocks = nn.ModuleList(make() for _ in range(2))
    (route,) = (r for r in routes(blocks) if r.name == "1.to_qkv.weight")
    return route


CUT = [Chunked, ChunkedByFunction, SplitBySize, Reshaped, Rearranged, CutInside, ChannelsLast, Permuted]


@pytest.mark.parametrize("make", CUT)
def test_a_convolution_to_query_key_and_value_is_split_where_the_forward_pass_cuts(make: type[Attention]) -> None:
    route = weight_of(make)
    assert route.sure
    parts = route.view.cut(route.parameter.detach())[0]
    assert torch.equal(parts, route.parameter.detach().flatten(1).unflatten(0, (3, W)))


@pytest.mark.parametrize("make", [ByHead, Attention, CutAlongWidth])
def test_a_convolution_that_is_cut_otherwise_is_whole_and_unsure(make: type[Attention]) -> None:
    route = weight_of(make)
    assert not route.sure
    assert route.view.shapes(route.parameter.shape) == [(3 * W, W)]
