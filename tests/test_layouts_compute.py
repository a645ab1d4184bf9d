"""Each layout of a fused weight is what its module computes.

Without biases: the values cut out of a weight and set to zero leave attention nothing to mix; queries times 2 and keys
divided by 2 change nothing; a gate or its partner at zero closes a gated network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from inexact_muon.optim import routes
from real_models import DEEPSEEK, GPT2, LLAMA, MODELS, TEXT
from stubs import stubbed

CODE = {**GPT2, "attn_implementation": "eager"}
EXTRA: dict[str, tuple[str, str, dict[str, Any]]] = {
    "persimmon": ("PersimmonForCausalLM", "PersimmonConfig", {**TEXT, "qk_layernorm": False}),
    "bigcode": ("GPTBigCodeForCausalLM", "GPTBigCodeConfig", CODE),
    "bigcode by head": ("GPTBigCodeForCausalLM", "GPTBigCodeConfig", {**CODE, "multi_query": False}),
    "deepseek 2": ("DeepseekV2ForCausalLM", "DeepseekV2Config", {**DEEPSEEK, "first_k_dense_replace": 2}),
    "lfm 2": ("Lfm2ForCausalLM", "Lfm2Config", {**LLAMA, "full_attn_idxs": [1]}),
    "deberta": ("DebertaModel", "DebertaConfig", TEXT),
}

FALCON = ("transformer.h.0.self_attention.query_key_value.weight", "transformer.h.0.self_attention.dense", "qkv")
NEOX = ("gpt_neox.layers.0.attention.query_key_value.weight", "gpt_neox.layers.0.attention.dense", "qkv")
EXPERTS = "model.layers.0.mlp.experts"
CASES: dict[str, tuple[str, str, str, str]] = {
    "gpt2": ("gpt2", "transformer.h.0.attn.c_attn.weight", "transformer.h.0.attn.c_proj", "qkv"),
    "gpt-neox": ("gpt-neox", *NEOX),
    "bloom": ("bloom", *FALCON),
    "falcon new": ("falcon new", *FALCON),
    "falcon multi-query": ("falcon multi-query", *FALCON),
    "falcon old": ("falcon old", *FALCON),
    "codegen": ("codegen", "transformer.h.0.attn.qkv_proj.weight", "transformer.h.0.attn.out_proj", "qvk"),
    "mpt": ("mpt", "transformer.blocks.0.attn.Wqkv.weight", "transformer.blocks.0.attn.out_proj", "qkv"),
    "phi 3": ("phi 3", "model.layers.0.self_attn.qkv_proj.weight", "model.layers.0.self_attn.o_proj", "qkv"),
    "modernbert": ("modernbert", "model.layers.0.attn.Wqkv.weight", "model.layers.0.attn.Wo", "qkv"),
    "persimmon": (
        "persimmon",
        "model.layers.0.self_attn.query_key_value.weight",
        "model.layers.0.self_attn.dense",
        "qkv",
    ),
    "bigcode": ("bigcode", "transformer.h.0.attn.c_attn.weight", "transformer.h.0.attn.c_proj", "qkv"),
    "bigcode by head": ("bigcode by head", "transformer.h.0.attn.c_attn.weight", "transformer.h.0.attn.c_proj", "qkv"),
    "deberta": (
        "deberta",
        "encoder.layer.0.attention.self.in_proj.weight",
        "encoder.layer.0.attention.output.dense",
        "qkv",
    ),
    "deepseek up": ("deepseek 2", "model.layers.0.self_attn.kv_b_proj.weight", "model.layers.0.self_attn.o_proj", "-v"),
    "jetmoe key, value": (
        "jetmoe",
        "model.layers.0.self_attention.kv_proj.weight",
        "model.layers.0.self_attention.experts.output_linear",
        "-v",
    ),
    "phi 3 gate": ("phi 3", "model.layers.0.mlp.gate_up_proj.weight", "model.layers.0.mlp.down_proj", "gg"),
    "glm gate": ("glm", "model.layers.0.mlp.gate_up_proj.weight", "model.layers.0.mlp.down_proj", "gg"),
    "modernbert gate": ("modernbert", "model.layers.0.mlp.Wi.weight", "model.layers.0.mlp.Wo", "gg"),
    "jetmoe gate": ("jetmoe", "model.layers.0.mlp.input_linear.weight", "model.layers.0.mlp.output_linear", "gg"),
    "mixtral": ("mixtral", f"{EXPERTS}.gate_up_proj", f"-{EXPERTS}", "gg"),
    "qwen 3 mixture": ("qwen 3 mixture", f"{EXPERTS}.gate_up_proj", f"-{EXPERTS}", "gg"),
    "gpt-oss": ("gpt-oss", f"{EXPERTS}.gate_up_proj", f"-{EXPERTS}", "g-"),
    "llama 4": (
        "llama 4",
        "model.layers.0.feed_forward.experts.gate_up_proj",
        "-model.layers.0.feed_forward.experts",
        "gg",
    ),
    "mamba": ("mamba", "backbone.layers.0.mixer.in_proj.weight", "backbone.layers.0.mixer.out_proj", "gg"),
    "mamba 2": ("mamba 2", "backbone.layers.0.mixer.in_proj.weight", "backbone.layers.0.mixer.out_proj", "gg---"),
    "lfm 2": ("lfm 2", "model.layers.0.conv.in_proj.weight", "model.layers.0.conv.out_proj", "ggg"),
}
"""Name -> (model, weight, the layer whose input is looked at, or "-" and the one whose output is, parts).

Parts: q and k may be exchanged by a factor, v and g make everything zero, - is not looked at.
"""


@pytest.fixture(scope="module")
def transformers() -> Any:
    return pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def timm() -> Iterator[Callable[..., nn.Module]]:
    with stubbed("torchvision", "PIL"):
        yield pytest.importorskip("timm").create_model


def seen(model: nn.Module, place: str, inputs: dict[str, Tensor]) -> Tensor:
    """What the layer at a place gets, or gives, in a forward pass."""
    found: list[Tensor] = []
    layer = model.get_submodule(place.removeprefix("-"))
    if place.startswith("-"):
        hook = layer.register_forward_hook(lambda _, args, out: found.append(out[0] if isinstance(out, tuple) else out))
    else:
        hook = layer.register_forward_pre_hook(lambda _, args: found.append(args[0]))
    with torch.no_grad():
        model(**inputs)
    hook.remove()
    return found[0].clone()


def compare(model: nn.Module, weights: Sequence[str], place: str, parts: str, inputs: dict[str, Tensor]) -> None:
    """Changes the parts of the weights and looks at the place."""
    model.eval()
    made = {route.name: route for route in routes(model)}
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "bias" in name:
                p.zero_()
    originals = {name: model.get_parameter(name).detach().clone() for name in weights}
    before = seen(model, place, inputs)
    assert before.abs().amax() > 1e-6

    def change(factors: dict[int, float]) -> Tensor:
        for name in weights:
            x, view = originals[name], made[name].view
            cut = [m * factors.get(i, 1.0) for i, m in enumerate(view.cut(x))]
            assert len(cut) == len(parts)
            with torch.no_grad():
                model.get_parameter(name).copy_(view.join(cut, x.shape))
        return seen(model, place, inputs)

    for i, part in enumerate(parts):
        if part in "vg":
            assert not change({i: 0.0}).any(), f"part {i} is not {part}"
    if "q" in parts:
        exchanged = change({parts.index("q"): 2.0, parts.index("k"): 0.5})
        torch.testing.assert_close(exchanged, before, rtol=1e-4, atol=1e-6)
        assert not torch.allclose(change({parts.index("q"): 2.0}), before, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("name", CASES)
def test_layouts_of_transformers(transformers: Any, name: str) -> None:
    key, weight, place, parts = CASES[name]
    model, config, options = EXTRA[key] if key in EXTRA else MODELS[key][:3]
    torch.manual_seed(0)
    built = getattr(transformers, model)(getattr(transformers, config)(**options))
    with torch.no_grad():
        for p in built.parameters():
            if p.ndim > 1:
                p.normal_(std=0.3)  # so that attention is not uniform
    compare(built, [weight], place, parts, {"input_ids": torch.arange(16).reshape(2, 8) % 90 + 3})


TIMM = {
    "vit": ("vit_tiny_patch16_224", "blocks.0.attn.qkv.weight", "blocks.0.attn.proj", "qkv"),
    "packed gate": ("eva02_tiny_patch14_224", "blocks.0.mlp.fc1.weight", "blocks.0.mlp.fc2", "gg"),
    "levit": ("levit_128s", "stages.0.blocks.0.attn.qkv.linear.weight", "stages.0.blocks.0.attn.proj", "qkv"),
    "swin": ("swin_tiny_patch4_window7_224", "layers.0.blocks.0.attn.qkv.weight", "layers.0.blocks.0.attn.proj", "qkv"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TIMM)
def test_layouts_of_timm(timm: Callable[..., nn.Module], name: str) -> None:
    model, weight, place, parts = TIMM[name]
    torch.manual_seed(0)
    built = timm(model, num_classes=5)
    with torch.no_grad():
        built.get_parameter(weight).normal_(std=0.3)
    compare(built, [weight], place, parts, {"x": torch.randn(1, 3, 224, 224)})


class Attention(nn.Module):
    """nn.MultiheadAttention of one input, and a layer after it."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.after = nn.MultiheadAttention(8, 2, bias=False, batch_first=True), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Any:
        return self.after(self.attention(x, x, x)[0])


class Recurrent(nn.Module):
    """A recurrent network, and a layer after it."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.rnn, self.after = kind(8, 8, bias=False, batch_first=True), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Any:
        return self.after(self.rnn(x)[0])


@pytest.mark.parametrize(
    ("model", "weights", "parts"),
    [
        (Attention(), ["attention.in_proj_weight"], "qkv"),
        (Recurrent(nn.LSTM), ["rnn.weight_ih_l0", "rnn.weight_hh_l0"], "--g-"),
        (Recurrent(nn.GRU), ["rnn.weight_ih_l0", "rnn.weight_hh_l0"], "--g"),
    ],
    ids=["attention", "lstm", "gru"],
)
def test_layouts_of_torch(model: nn.Module, weights: list[str], parts: str) -> None:
    torch.manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            p.normal_()
    compare(model, weights, "after", parts, {"x": torch.randn(2, 5, 8)})
