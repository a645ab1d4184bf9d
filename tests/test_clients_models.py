"""Models of transformers, peft and timm: trained, resumed, and every trainable parameter has one place."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from clients import MUON, WORDS, Tokens, same
from inexact_muon import Muon
from inexact_muon.integrations.transformers import MuonFactory
from torchvision_stub import import_timm

pytestmark = pytest.mark.slow
SIZES = {"vocab_size": WORDS, "hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}


def llama() -> nn.Module:
    transformers = pytest.importorskip("transformers", reason="the extra `clients` brings transformers")
    sizes = {**SIZES, "num_hidden_layers": 2, "num_key_value_heads": 1, "tie_word_embeddings": True}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes))


def gpt2() -> nn.Module:
    transformers = pytest.importorskip("transformers", reason="the extra `clients` brings transformers")
    sizes = {"vocab_size": WORDS, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 8}
    quiet = {"bos_token_id": 0, "eos_token_id": 0, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **quiet))


def lora() -> nn.Module:
    peft = pytest.importorskip("peft", reason="the extra `clients` brings peft")
    return peft.get_peft_model(
        llama(), peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    )


LANGUAGE = {"llama, tied": llama, "gpt-2": gpt2, "lora": lora}


def seeded(build: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build()


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def each_once(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    held = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert len(held) == len(set(held))
    assert set(held) == {id(p) for p in trainable(model).values()}


@pytest.mark.parametrize("kind", LANGUAGE)
def test_trained_and_resumed_in_the_trainer(kind: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="the extra `clients` brings transformers")
    from client_trainer import arguments

    def fit(resume: str | None) -> tuple[nn.Module, Any]:
        model = seeded(LANGUAGE[kind])
        given = arguments(tmp_path, max_steps=6, save_steps=3)
        hook = (MuonFactory, MUON.options)
        trainer = transformers.Trainer(model, given, train_dataset=Tokens(), optimizer_cls_and_kwargs=hook)
        trainer.train(resume_from_checkpoint=resume)
        return model, trainer.optimizer.optimizer

    model, optimizer = fit(None)
    each_once(optimizer, model)
    start = dict(seeded(LANGUAGE[kind]).named_parameters())
    stayed = {name for name, p in model.named_parameters() if torch.equal(p, start[name])}
    assert stayed == set(dict(model.named_parameters())) - set(trainable(model))
    again, resumed = fit(str(tmp_path / "checkpoint-3"))
    same(dict(again.named_parameters()), dict(model.named_parameters()))
    same(resumed.state_dict(), optimizer.state_dict())


def test_an_adapter_is_trained_and_its_base_is_not() -> None:
    model = seeded(lora)
    names = set(trainable(model))
    assert names
    assert all("lora_" in name for name in names)
    optimizer = Muon.for_model(model, lr=0.02)
    each_once(optimizer, model)
    assert {name for name, _, group in optimizer.named() if group["algorithm"] == "lmo"}, "no adapter gets the LMO"


TIMM: dict[str, tuple[dict[str, Any], set[str]]] = {
    "vit_tiny_patch16_224": (
        {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 1, "num_heads": 3},
        {"cls_token", "pos_embed", "head.weight"},
    ),
    "convnext_atto": ({"depths": (1, 1, 1, 1), "dims": (8, 8, 16, 16)}, {"head.fc.weight"}),
    "resnet18": ({}, {"fc.weight"}),
}
"""Model -> its sizes here, and the parameters of two and more dimensions that AdamW must get, among others."""


@pytest.mark.parametrize("name", TIMM)
def test_timm_models_take_a_step(name: str) -> None:
    if find_spec("timm") is None:
        pytest.skip("timm is not installed: the set-up of the Makefile brings it")
    sizes, aside = TIMM[name]
    model = seeded(lambda: import_timm().create_model(name, num_classes=5, **sizes))
    start = {key: p.detach().clone() for key, p in model.named_parameters()}
    optimizer = Muon.for_model(model, lr=0.02, adamw={"lr": 1e-3})
    each_once(optimizer, model)
    images = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    nn.functional.cross_entropy(model(images), torch.arange(4)).backward()
    optimizer.step()
    moving = {key for key, p in model.named_parameters() if p.grad is not None and p.grad.abs().max() > 0}
    assert {key for key, p in model.named_parameters() if not torch.equal(p, start[key])} >= moving
    algorithms = {key: group["algorithm"] for key, _, group in optimizer.named()}
    assert "lmo" in algorithms.values()
    assert {key: algorithms[key] for key in aside} == dict.fromkeys(aside, "adamw")
