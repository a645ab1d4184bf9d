"""With heads=True each matrix acts on its own head alone, in more architectures, also where attention is written out.

Seen where the output projection takes the heads side by side: a matrix at zero changes whole heads and no others, and
a head whose matrices are alone is what it was.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from inexact_muon.optim import routes
from real_models import BART, GPT2, IMAGES, LLAMA, MODELS, SIZES, T5, TEXT
from stubs import stubbed
from test_heads_compute import TOKENS, changed, singles, spread

SHORT = {key: value for key, value in LLAMA.items() if key != "head_dim"}
WIDE = {**LLAMA, "head_dim": 16}
SAM = {**IMAGES, "window_size": 0, "global_attn_indexes": [0, 1], "mlp_dim": 48, "output_channels": 16}
WHISPER = {**BART, "num_mel_bins": 8, "max_source_positions": 16, "max_target_positions": 16}
CLIP = {
    "text_config": {**SIZES, "vocab_size": 96, "max_position_embeddings": 32, "eos_token_id": 2, "bos_token_id": 1},
    "vision_config": {**SIZES, "image_size": 16, "patch_size": 8},
    "projection_dim": 16,
}
OPT = {**TEXT, "ffn_dim": 48, "word_embed_proj_dim": 32}
SEPARATE, FUSED = ("q_proj", "k_proj", "v_proj"), ("qkv",)

CASES: dict[str, tuple[str, str, dict[str, Any], tuple[tuple[str, tuple[str, ...], str], ...]]] = {
    "mistral": ("MistralForCausalLM", "MistralConfig", LLAMA, (("layers.0.self_attn", SEPARATE, "o_proj"),)),
    "qwen 2": ("Qwen2ForCausalLM", "Qwen2Config", LLAMA, (("layers.1.self_attn", SEPARATE, "o_proj"),)),
    "olmo": ("OlmoForCausalLM", "OlmoConfig", SHORT, (("layers.0.self_attn", SEPARATE, "o_proj"),)),
    "gemma 2": (
        "Gemma2ForCausalLM",
        "Gemma2Config",
        {**WIDE, "query_pre_attn_scalar": 16},
        (("layers.0.self_attn", SEPARATE, "o_proj"),),
    ),
    "cohere": ("CohereForCausalLM", "CohereConfig", SHORT, (("layers.0.self_attn", SEPARATE, "o_proj"),)),
    "starcoder 2": ("Starcoder2ForCausalLM", "Starcoder2Config", SHORT, (("layers.0.self_attn", SEPARATE, "o_proj"),)),
    "gpt-j": ("GPTJForCausalLM", "GPTJConfig", {**GPT2, "rotary_dim": 4}, (("h.0.attn", SEPARATE, "out_proj"),)),
    "codegen": (
        "CodeGenForCausalLM",
        "CodeGenConfig",
        {**GPT2, "rotary_dim": 4},
        (("h.0.attn", ("qkv_proj",), "out_proj"),),
    ),
    "opt": ("OPTForCausalLM", "OPTConfig", OPT, (("layers.0.self_attn", SEPARATE, "out_proj"),)),
    "mpt": (*MODELS["mpt"][:3], (("blocks.0.attn", ("Wqkv",), "out_proj"),)),
    "bloom": (*MODELS["bloom"][:3], (("h.0.self_attention", ("query_key_value",), "dense"),)),
    "bigcode by head": (
        "GPTBigCodeForCausalLM",
        "GPTBigCodeConfig",
        {**GPT2, "multi_query": False},
        (("h.0.attn", ("c_attn",), "c_proj"),),
    ),
    "bigcode": ("GPTBigCodeForCausalLM", "GPTBigCodeConfig", GPT2, (("h.0.attn", ("c_attn",), "c_proj"),)),
    "t5": (
        "T5ForConditionalGeneration",
        "T5Config",
        T5,
        (
            ("encoder.block.0.layer.0.SelfAttention", ("q", "k", "v"), "o"),
            ("decoder.block.0.layer.1.EncDecAttention", ("q", "k", "v"), "o"),
        ),
    ),
    "whisper": (
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        WHISPER,
        (("encoder.layers.0.self_attn", SEPARATE, "out_proj"), ("decoder.layers.0.encoder_attn", SEPARATE, "out_proj")),
    ),
    "distilbert": (
        "DistilBertModel",
        "DistilBertConfig",
        {"dim": 32, "n_layers": 1, "n_heads": 4, "hidden_dim": 48, "vocab_size": 96, "max_position_embeddings": 32},
        (("layer.0.attention", ("q_lin", "k_lin", "v_lin"), "out_lin"),),
    ),
    "deberta": (
        "DebertaModel",
        "DebertaConfig",
        TEXT,
        (("layer.0.attention", ("self.in_proj",), "output.dense"),),
    ),
    "clip": (
        "CLIPModel",
        "CLIPConfig",
        CLIP,
        tuple((f"{part}_model.encoder.layers.0.self_attn", SEPARATE, "out_proj") for part in ("text", "vision")),
    ),
    "sam": ("SamVisionModel", "SamVisionConfig", SAM, (("layers.0.attn", FUSED, "proj"),)),
}
"""Name -> (class, config, options, (attention, layers that make query, key and value, output projection)...)."""

TIMM: dict[str, tuple[str, dict[str, Any], tuple[str, tuple[str, ...], str]]] = {
    "deit": ("deit_tiny_patch16_224", {"img_size": 32, "depth": 1}, ("blocks.0.attn", FUSED, "proj")),
    "beit": (
        "beit_base_patch16_224",
        {"img_size": 32, "depth": 1, "embed_dim": 64, "num_heads": 4},
        ("blocks.0.attn", FUSED, "proj"),
    ),
    "swin": (
        "swin_tiny_patch4_window7_224",
        {"img_size": 56, "depths": (1, 1), "embed_dim": 32, "num_heads": (2, 4)},
        ("layers.0.blocks.0.attn", FUSED, "proj"),
    ),
    "relative positions": (
        "vit_relpos_small_patch16_224",
        {"img_size": 32, "depth": 1, "embed_dim": 64, "num_heads": 4},
        ("blocks.0.attn", FUSED, "proj"),
    ),
    "sam": (
        "samvit_base_patch16",
        {"img_size": 32, "depth": 1, "embed_dim": 64, "num_heads": 4, "window_size": 0},
        ("blocks.0.attn", FUSED, "proj"),
    ),
    "xcit": ("xcit_nano_12_p16_224", {"img_size": 32, "depth": 1, "embed_dim": 64}, ("blocks.0.attn", FUSED, "proj")),
}
"""The same of timm."""


def inputs_of(model: nn.Module, name: str) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(0)
    images = torch.randn(2, 3, 16, 16, dtype=torch.float64, generator=draw)
    tokens = {"input_ids": TOKENS["input_ids"]}
    match name:
        case "t5":
            return {**tokens, "decoder_input_ids": TOKENS["input_ids"]}
        case "whisper":
            sound = torch.randn(2, 8, 32, dtype=torch.float64, generator=draw)
            return {"input_features": sound, "decoder_input_ids": TOKENS["input_ids"]}
        case "clip":
            return {**tokens, "pixel_values": images}
        case "sam":
            return {"pixel_values": images}
    return tokens


def taken(model: nn.Module, layer: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    """What the output projection takes: (vectors, width)."""
    calls: list[Tensor] = []
    hook = layer.register_forward_pre_hook(lambda _, args: calls.append(args[0].detach().clone()))
    with torch.no_grad():
        model(**inputs)
    hook.remove()
    return calls[0].flatten(0, -2)


def check(model: nn.Module, inputs: dict[str, Tensor], place: str, layers: tuple[str, ...], out: str) -> None:
    """The reach of each matrix of one attention, and each head alone."""
    (attention,) = [name for name, _ in model.named_modules() if re.fullmatch(rf"(.*\.)?{re.escape(place)}", name)]
    made = {route.name: route for route in routes(model, heads=True)}
    views = {name: made[name].view for name in (f"{attention}.{layer}.weight" for layer in layers)}
    assert all(made[name].sure for name in views)
    old = {name: model.get_parameter(name).detach().clone() for name in views}
    matrices = [(name, at) for name, view in views.items() for at in singles(view, old[name])]
    projection = model.get_submodule(f"{attention}.{out}")
    before = taken(model, projection, inputs)

    def without(zeros: list[tuple[str, tuple[int, int]]]) -> Tensor:
        """What the projection takes with these matrices at zero."""
        with torch.no_grad():
            for name, view in views.items():
                kept = changed(view, old[name], lambda i, j, name=name: (name, (i, j)) not in zeros)  # type: ignore[misc]
                model.get_parameter(name).copy_(kept)
        return taken(model, projection, inputs)

    reach = torch.stack([(without([matrix]) - before).abs().amax(0) > 1e-9 for matrix in matrices])
    assert (reach.sum(0) == 3).all(), "a query, a key and a value for each entry"
    different = reach.unique(dim=0)
    heads = [own for own in different if sum(bool((other <= own).all()) for other in different) == 1]  # no group's
    assert len(heads) > 1
    for head in heads:
        others = [matrix for matrix, own in zip(matrices, reach, strict=True) if not (own & head).any()]
        torch.testing.assert_close(without(others)[:, head], before[:, head])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("name", CASES)
def test_a_matrix_acts_on_its_head_alone(name: str) -> None:
    library = pytest.importorskip("transformers")
    kind, config, options, attentions = CASES[name]
    model = spread(getattr(library, kind)(getattr(library, config)(**options)))
    for attention in attentions:
        check(model, inputs_of(model, name), *attention)


@pytest.mark.slow
@pytest.mark.parametrize("name", TIMM)
def test_a_matrix_acts_on_its_head_alone_in_timm(name: str) -> None:
    kind, options, attention = TIMM[name]
    with stubbed("torchvision", "PIL"):
        model = spread(pytest.importorskip("timm").create_model(kind, num_classes=5, **options))
    size = options["img_size"]
    check(model, {"x": torch.randn(1, 3, size, size, dtype=torch.float64)}, *attention)
