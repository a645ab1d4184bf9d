"""Every parameter of real architectures gets what it should: algorithm, matrices, scale, split, decay."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from inexact_muon import Muon
from inexact_muon.optim import routes
from real_models import MODELS, TIMM, TIMM_PARTS
from routing_table import check, check_step, described
from stubs import stubbed

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:Please use the new API settings"),
]


@pytest.fixture(scope="module")
def transformers() -> Any:
    return pytest.importorskip("transformers")


def built(transformers: Any, name: str) -> nn.Module:
    model, config, options, _ = MODELS[name]
    torch.manual_seed(0)
    made: nn.Module = getattr(transformers, model)(getattr(transformers, config)(**options))
    return made


@pytest.mark.parametrize("name", MODELS)
def test_transformers(transformers: Any, name: str) -> None:
    model = built(transformers, name)
    check(model, MODELS[name][3])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_step(model)


def test_models_on_the_meta_device(transformers: Any) -> None:
    with torch.device("meta"):
        model = built(transformers, "llama")
    check(model, MODELS["llama"][3])


@pytest.fixture(scope="module")
def timm() -> Iterator[Callable[..., nn.Module]]:
    with stubbed("torchvision", "PIL"):
        yield pytest.importorskip("timm").create_model


@pytest.mark.parametrize("name", TIMM)
def test_timm(timm: Callable[..., nn.Module], name: str) -> None:
    options, expected = TIMM[name]
    model = timm(name, num_classes=5, **options)
    check(model, expected)
    check_step(model)


@pytest.mark.parametrize("name", TIMM_PARTS)
def test_parts_of_larger_timm_models(timm: Callable[..., nn.Module], name: str) -> None:

    with torch.device("meta"):
        made = {route.name: described(route) for route in routes(timm(name, num_classes=5))}
    for pattern, expected in TIMM_PARTS[name].items():
        found = {text for parameter, text in made.items() if re.fullmatch(pattern, parameter)}
        assert found == {expected}, pattern


def test_timm_says_what_does_not_decay(timm: Callable[..., nn.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    model = timm("vit_tiny_patch16_224", num_classes=5, embed_dim=32, depth=1, num_heads=4, img_size=32)
    assert {"cls_token", "pos_embed"} <= model.no_weight_decay()  # type: ignore[operator]
    monkeypatch.setattr(type(model), "no_weight_decay", lambda self: {"blocks.0.attn.qkv.weight"})
    for outer in (model, nn.ModuleDict({"backbone": model})):
        kept = [r.name for r in routes(outer) if r.algorithm == "lmo" and not r.decay]
        assert [name.removeprefix("backbone.") for name in kept] == ["blocks.0.attn.qkv.weight"]


def lora(transformers: Any, model: str, **options: Any) -> nn.Module:
    peft = pytest.importorskip("peft")
    adapted: nn.Module = peft.get_peft_model(built(transformers, model), peft.LoraConfig(r=4, **options))
    return adapted


def test_lora(transformers: Any) -> None:
    expected = {
        r".*lora_A\.default\.weight": "whole() 4x32 @1",
        r".*q_proj\.lora_B\.default\.weight": "whole() 32x4 @2.83",
        r".*v_proj\.lora_B\.default\.weight": "whole() 16x4 @2",
    }
    model = lora(transformers, "llama", target_modules=["q_proj", "v_proj"])
    check(model, expected)
    check_step(model)


def test_lora_with_a_new_output_and_embeddings(transformers: Any) -> None:
    model = lora(
        transformers,
        "bert classifier",
        target_modules=["query", "word_embeddings"],
        modules_to_save=["classifier"],
    )
    expected = {
        r".*lora_embedding_[AB]\.default": "adamw",
        r".*query\.lora_A\.default\.weight": "whole() 4x32 @1",
        r".*query\.lora_B\.default\.weight": "whole() 32x4 @2.83",
        r".*classifier\.modules_to_save\.default\.weight": "adamw decay",
        r".*classifier\.modules_to_save\.default\.bias": "adamw",
    }
    check(model, expected)


def test_lora_of_conv1d_and_of_the_output(transformers: Any) -> None:
    expected = {
        r".*lora_A\.default\.weight": "whole() 4x32 @1",
        r".*c_attn\.lora_B\.default\.weight": "whole() 96x4 @4.9",
        r".*lm_head\.lora_B\.default\.weight": "whole() 96x4 @4.9",
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft: the output is tied
        model = lora(transformers, "gpt2", target_modules=["c_attn", "lm_head"], fan_in_fan_out=True)
    check(model, expected)


def test_conv1d_takes_the_steps_of_linear_bit_for_bit(transformers: Any) -> None:
    model = built(transformers, "gpt2")
    other = built(transformers, "gpt2")
    for name, module in list(other.named_modules()):
        if type(module).__name__ == "Conv1D":
            linear = nn.Linear(module.nx, module.nf)
            with torch.no_grad():
                linear.weight.copy_(module.weight.mT)
                linear.bias.copy_(module.bias)
            parent, _, last = name.rpartition(".")
            setattr(other.get_submodule(parent), last, linear)
    turned = {
        name for name, p in model.named_parameters() if name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight"))
    }
    optimizers = [Muon.for_model(m, 0.02, weight_decay=0.1) for m in (model, other)]
    generator = torch.Generator().manual_seed(0)
    theirs = dict(other.named_parameters())
    for _ in range(3):
        for name, p in model.named_parameters():
            p.grad = torch.randn(p.shape, generator=generator)
            theirs[name].grad = p.grad.mT.contiguous() if name in turned else p.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
        for name, p in model.named_parameters():
            assert torch.equal(p.mT if name in turned else p, theirs[name]), name
