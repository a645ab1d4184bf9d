"""Real architectures in tiny sizes, and what each of their parameters should get."""

from __future__ import annotations

from typing import Any

from routing_table import Expected

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
TEXT = {
    **SIZES,
    "vocab_size": 96,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA = {**TEXT, "num_key_value_heads": 2, "head_dim": 8}
IMAGES = {**SIZES, "image_size": 16, "patch_size": 8, "num_labels": 5}
GPT2 = {
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "vocab_size": 96,
    "n_positions": 32,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
T5 = {"d_model": 32, "d_ff": 48, "d_kv": 8, "num_heads": 4, "num_layers": 2, "vocab_size": 96}
BART = {
    **{f"{part}_layers": 1 for part in ("encoder", "decoder")},
    **{f"{part}_attention_heads": 4 for part in ("encoder", "decoder")},
    **{f"{part}_ffn_dim": 48 for part in ("encoder", "decoder")},
    "d_model": 32,
    "vocab_size": 96,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
}
LATENT = {"q_lora_rank": 12, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 6, "v_head_dim": 6}
DEEPSEEK = {**TEXT, **LATENT, "n_routed_experts": 4, "moe_intermediate_size": 24, "n_group": 1, "topk_group": 1}

SQUARE, UP, DOWN = "whole() 32x32 @1", "whole() 48x32 @1.22", "whole() 32x48 @1"
ATTENTION = {
    r"model\.layers\.\d\.self_attn\.[qo]_proj\.weight": SQUARE,
    r"model\.layers\.\d\.self_attn\.[kv]_proj\.weight": "whole() 16x32 @1",
}
GATED = {r".*\.mlp\.(gate|up)_proj\.weight": UP, r".*\.mlp\.down_proj\.weight": DOWN}
EMBED = {r"model\.embed_tokens\.weight": "adamw"}
HEAD = {r"lm_head\.weight": "adamw decay"}
BODY = {**EMBED, **ATTENTION, **GATED, r".*norm\.weight": "adamw"}
MOE = {
    r".*\.mlp\.gate\.weight": "whole() 4x32 @1",
    r".*\.experts\.gate_up_proj": "split(rows=2) 2*4x24x32 @1",
    r".*\.experts\.down_proj": "whole() 4x32x24 @1.15",
}
BERT = {
    r"bert\.embeddings\.\w+_embeddings\.weight": "adamw",
    r".*LayerNorm\.(weight|bias)": "adamw",
    r".*(?<!LayerNorm)\.bias": "adamw",
    r"bert\.encoder\.layer\.\d\.attention\.(self\.(query|key|value)|output\.dense)\.weight": SQUARE,
    r"bert\.encoder\.layer\.\d\.intermediate\.dense\.weight": UP,
    r"bert\.encoder\.layer\.\d\.output\.dense\.weight": DOWN,
}
POOLED = {r"bert\.pooler\.dense\.weight": SQUARE}
T5_BODY = {
    r"shared\.weight": "adamw",
    r".*(SelfAttention|EncDecAttention)\.[qkvo]\.weight": SQUARE,
    r".*relative_attention_bias\.weight": "adamw",
    r".*norm\.weight": "adamw",
    r".*\.wi\w*\.weight": UP,
    r".*\.wo\.weight": DOWN,
}
BART_BODY = {
    r".*(shared|embed_positions)\.weight": "adamw",
    r".*norm\w*\.weight": "adamw",
    r".*bias": "adamw",
    r".*layers.*attn\.\w+_proj\.weight": SQUARE,
    r".*fc1\.weight": UP,
    r".*fc2\.weight": DOWN,
}
VIT = {
    r".*(cls_token|position_embeddings)": "adamw",
    r".*patch_embeddings\.projection\.weight": "flatten() 32x192 @1",
    r".*bias": "adamw",
    r".*layernorm\w*\.weight": "adamw",
    r".*attention\.\w+\.weight": SQUARE,
    r".*mlp\.fc1\.weight": UP,
    r".*mlp\.fc2\.weight": DOWN,
}
GPT = {
    r"transformer\.wpe\.weight": "adamw",
    r".*\.ln_\w+\.(weight|bias)": "adamw",
    r".*(c_attn|c_proj|c_fc|q_attn)\.bias": "adamw",
    r".*\.c_attn\.weight": "transposed(inner=split(rows=3)) 3*32x32 @1",
    r".*\.attn\.c_proj\.weight": "transposed(inner=whole()) 32x32 @1",
    r".*\.c_fc\.weight": "transposed(inner=whole()) 128x32 @2",
    r".*\.mlp\.c_proj\.weight": "transposed(inner=whole()) 32x128 @1",
}


def fused(name: str, expected: str, mlp: Expected, head: str | None = "lm_head") -> Expected:
    """A decoder with a fused query, key and value."""
    rest = {
        r".*(wte|embed_in|embed_tokens|word_embeddings)\.weight": "adamw",
        r".*(bias|(norm|ln|ln_\w|layernorm|norm_\d)\w*\.weight)": "adamw",
        r".*\.(dense|out_proj|o_proj)\.weight": SQUARE,
        rf".*{name}\.weight": expected,
        **mlp,
    }
    return rest | ({rf"{head}\.weight": "adamw decay"} if head else {})


WIDE = {
    r".*(dense_h_to_4h|fc_in|up_proj)\.weight": "whole() 128x32 @2",
    r".*(dense_4h_to_h|fc_out|down_proj)\.weight": "whole() 32x128 @1",
}
NARROW = {r".*dense_h_to_4h\.weight": UP, r".*dense_4h_to_h\.weight": DOWN}
PACKED = {r".*gate_up_proj\.weight": "split(rows=2) 2*48x32 @1.22", r".*down_proj\.weight": DOWN}

MODELS: dict[str, tuple[str, str, dict[str, Any], Expected]] = {
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", GPT2, {r"transformer\.wte\.weight": "adamw", **GPT}),
    "gpt2 classifier": (
        "GPT2ForSequenceClassification",
        "GPT2Config",
        {**GPT2, "num_labels": 3},
        {r"transformer\.wte\.weight": "adamw", **GPT, r"score\.weight": "adamw decay"},
    ),
    "bert classifier": (
        "BertForSequenceClassification",
        "BertConfig",
        {**TEXT, "num_labels": 3},
        {**BERT, **POOLED, r"classifier\.weight": "adamw decay"},
    ),
    "bert masked": (
        "BertForMaskedLM",
        "BertConfig",
        TEXT,
        {**BERT, r"cls\.predictions\.transform\.dense\.weight": SQUARE},
    ),
    "bert pretraining": (
        "BertForPreTraining",
        "BertConfig",
        TEXT,
        {
            **BERT,
            **POOLED,
            r"cls\.predictions\.transform\.dense\.weight": SQUARE,
            r"cls\.seq_relationship\.weight": "adamw decay",
        },
    ),
    "bert bare": (
        "BertModel",
        "BertConfig",
        TEXT,
        {key.removeprefix(r"bert\."): value for key, value in {**BERT, **POOLED}.items()},
    ),
    "bert one layer": (
        "BertForQuestionAnswering",
        "BertConfig",
        {**TEXT, "num_hidden_layers": 1},
        {**BERT, r"qa_outputs\.weight": "adamw decay"},
    ),
    "t5": ("T5ForConditionalGeneration", "T5Config", T5, T5_BODY),
    "t5 gated": ("T5ForConditionalGeneration", "T5Config", {**T5, "feed_forward_proj": "gated-gelu"}, T5_BODY),
    "t5 encoder": ("T5EncoderModel", "T5Config", T5, T5_BODY),
    "llama": ("LlamaForCausalLM", "LlamaConfig", LLAMA, {**BODY, **HEAD}),
    "llama tied": ("LlamaForCausalLM", "LlamaConfig", {**LLAMA, "tie_word_embeddings": True}, BODY),
    "llama bare": (
        "LlamaModel",
        "LlamaConfig",
        LLAMA,
        {key.removeprefix(r"model\."): value for key, value in BODY.items()},
    ),
    "llama classifier as wide as the model": (
        "LlamaForSequenceClassification",
        "LlamaConfig",
        {**LLAMA, "num_labels": 32},
        {**BODY, r"score\.weight": "adamw decay"},
    ),
    "qwen 2": ("Qwen2ForCausalLM", "Qwen2Config", LLAMA, {**BODY, **HEAD, r".*bias": "adamw"}),
    "qwen 3": ("Qwen3ForCausalLM", "Qwen3Config", LLAMA, {**BODY, **HEAD}),
    "gemma 2": ("Gemma2ForCausalLM", "Gemma2Config", LLAMA, BODY),
    "mistral": ("MistralForCausalLM", "MistralConfig", LLAMA, {**BODY, **HEAD}),
    "phi 3": (
        "Phi3ForCausalLM",
        "Phi3Config",
        LLAMA,
        fused("qkv_proj", "split(rows=(32, 16, 16)) 32x32+2*16x32 @1", PACKED),
    ),
    "glm": (
        "GlmForCausalLM",
        "GlmConfig",
        LLAMA,
        {**EMBED, **ATTENTION, **PACKED, **HEAD, r".*(norm\.weight|bias)": "adamw"},
    ),
    "gpt-neox": (
        "GPTNeoXForCausalLM",
        "GPTNeoXConfig",
        TEXT,
        fused("query_key_value", "split(rows=3, groups=4) 3*32x32 @1", NARROW),
    ),
    "bloom": (
        "BloomForCausalLM",
        "BloomConfig",
        {"hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": 96},
        fused("query_key_value", "split(rows=3, groups=4) 3*32x32 @1", WIDE, None),
    ),
    "persimmon": (
        "PersimmonForCausalLM",
        "PersimmonConfig",
        TEXT,
        fused("query_key_value", "split(rows=3, groups=4) 3*32x32 @1", NARROW),
    ),
    "codegen": (
        "CodeGenForCausalLM",
        "CodeGenConfig",
        {**GPT2, "rotary_dim": 4},
        fused("qkv_proj", "split(rows=3, groups=4) 3*32x32 @1", WIDE),
    ),
    "mpt": (
        "MptForCausalLM",
        "MptConfig",
        {"d_model": 32, "n_layers": 2, "n_heads": 4, "vocab_size": 96},
        fused("Wqkv", "split(rows=3) 3*32x32 @1", WIDE, None),
    ),
    "falcon new": (
        "FalconForCausalLM",
        "FalconConfig",
        {**TEXT, "num_kv_heads": 2, "new_decoder_architecture": True},
        fused("query_key_value", "split(rows=(16, 8, 8), groups=2) 32x32+2*16x32 @1", WIDE, None),
    ),
    "falcon multi-query": (
        "FalconForCausalLM",
        "FalconConfig",
        {**TEXT, "multi_query": True},
        fused("query_key_value", "split(rows=(32, 8, 8)) 32x32+2*8x32 @1", WIDE, None),
    ),
    "falcon old": (
        "FalconForCausalLM",
        "FalconConfig",
        {**TEXT, "multi_query": False},
        fused("query_key_value", "split(rows=3, groups=4) 3*32x32 @1", WIDE, None),
    ),
    "modernbert": (
        "ModernBertForMaskedLM",
        "ModernBertConfig",
        {**TEXT, "cls_token_id": 1, "sep_token_id": 2},
        {
            r".*tok_embeddings\.weight": "adamw",
            r".*(norm\w*\.weight|bias)": "adamw",
            r".*Wqkv\.weight": "split(rows=3) 3*32x32 @1",
            r".*attn\.Wo\.weight": SQUARE,
            r".*Wi\.weight": "split(rows=2) 2*48x32 @1.22",
            r".*mlp\.Wo\.weight": DOWN,
            r"head\.dense\.weight": SQUARE,
        },
    ),
    "roberta classifier": (
        "RobertaForSequenceClassification",
        "RobertaConfig",
        {**TEXT, "num_labels": 3},
        {
            **{key.replace("bert", "roberta"): value for key, value in BERT.items()},
            r"classifier\.dense\.weight": SQUARE,
            r"classifier\.out_proj\.weight": "adamw decay",
        },
    ),
    "opt with projections": (
        "OPTForCausalLM",
        "OPTConfig",
        {**TEXT, "ffn_dim": 48, "word_embed_proj_dim": 16},
        {
            r".*embed_\w+\.weight": "adamw",
            r".*(norm\w*\.weight|bias)": "adamw",
            r".*self_attn\.\w+\.weight": SQUARE,
            r".*fc1\.weight": UP,
            r".*fc2\.weight": DOWN,
            r".*project_in\.weight": "whole() 32x16 @1.41",
            r".*project_out\.weight": "whole() 16x32 @1",
        },
    ),
    "bart": ("BartForConditionalGeneration", "BartConfig", BART, BART_BODY),
    "bart classifier": (
        "BartForSequenceClassification",
        "BartConfig",
        {**BART, "num_labels": 3},
        {
            **BART_BODY,
            r"classification_head\.dense\.weight": SQUARE,
            r"classification_head\.out_proj\.weight": "adamw decay",
        },
    ),
    "whisper": (
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        {**BART, "num_mel_bins": 8, "max_source_positions": 16, "max_target_positions": 16},
        {
            **BART_BODY,
            r".*(shared|embed_positions)\.weight": "adamw",
            r".*embed_tokens\.weight": "adamw",
            r".*conv1\.weight": "flatten() 32x24 @1.15",
            r".*conv2\.weight": "flatten() 32x96 @1",
        },
    ),
    "vit": ("ViTForImageClassification", "ViTConfig", IMAGES, {**VIT, r"classifier\.weight": "adamw decay"}),
    "vit bare": ("ViTModel", "ViTConfig", IMAGES, {**VIT, r"pooler\.dense\.weight": SQUARE}),
    "mixtral": (
        "MixtralForCausalLM",
        "MixtralConfig",
        {**LLAMA, "num_local_experts": 4, "intermediate_size": 24},
        {**EMBED, **ATTENTION, **MOE, **HEAD, r".*norm\.weight": "adamw"},
    ),
    "qwen 3 mixture": (
        "Qwen3MoeForCausalLM",
        "Qwen3MoeConfig",
        {**LLAMA, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
        {**EMBED, **ATTENTION, **MOE, **HEAD, r".*norm\.weight": "adamw"},
    ),
    "deepseek 3": (
        "DeepseekV3ForCausalLM",
        "DeepseekV3Config",
        {**DEEPSEEK, "first_k_dense_replace": 1, "num_experts_per_tok": 2},
        {
            **EMBED,
            **MOE,
            **HEAD,
            r".*norm\.weight": "adamw",
            r".*q_a_proj\.weight": "whole() 12x32 @1",
            r".*q_b_proj\.weight": "whole() 40x12 @1.83",
            r".*kv_a_proj_with_mqa\.weight": "split(rows=(8, 4)) 8x32+4x32 @1",
            r".*kv_b_proj\.weight": "split(rows=(6, 6), groups=4) 2*24x8 @1.73",
            r".*o_proj\.weight": "whole() 32x24 @1.15",
            r"model\.layers\.0\.mlp\.(gate|up)_proj\.weight": UP,
            r"model\.layers\.0\.mlp\.down_proj\.weight": DOWN,
            r".*shared_experts\.(gate|up)_proj\.weight": "whole() 24x32 @1",
            r".*shared_experts\.down_proj\.weight": "whole() 32x24 @1.15",
        },
    ),
    "gpt-oss": (
        "GptOssForCausalLM",
        "GptOssConfig",
        {**LLAMA, "num_local_experts": 4, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
        {
            **EMBED,
            **ATTENTION,
            **HEAD,
            r".*(norm\.weight|bias|sinks)": "adamw",
            r".*router\.weight": "whole() 4x32 @1",
            r".*experts\.gate_up_proj": "transposed(inner=split(rows=(1, 1), groups=48)) 2*4x48x32 @1.22",
            r".*experts\.down_proj": "transposed(inner=whole()) 4x32x48 @1",
        },
    ),
    "llama 4": (
        "Llama4ForCausalLM",
        "Llama4TextConfig",
        {**LLAMA, "num_local_experts": 4, "intermediate_size_mlp": 40},
        {
            **EMBED,
            **ATTENTION,
            **HEAD,
            r".*norm\.weight": "adamw",
            r".*router\.weight": "whole() 4x32 @1",
            r".*experts\.gate_up_proj": "transposed(inner=split(rows=2)) 2*4x48x32 @1.22",
            r".*experts\.down_proj": "transposed(inner=whole()) 4x32x48 @1",
            r".*shared_expert\.(gate|up)_proj\.weight": UP,
            r".*shared_expert\.down_proj\.weight": DOWN,
        },
    ),
    "jetmoe": (
        "JetMoeForCausalLM",
        "JetMoeConfig",
        {
            "hidden_size": 32,
            "num_hidden_layers": 1,
            "num_key_value_heads": 2,
            "kv_channels": 8,
            "intermediate_size": 48,
            "num_local_experts": 4,
            "vocab_size": 96,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        {
            **EMBED,
            r".*(norm\.weight|bias)": "adamw",
            r".*router\.layer\.weight": "whole() 4x32 @1",
            r".*mlp\.input_linear\.weight": "split(rows=2) 2*4x48x32 @1.22",
            r".*mlp\.output_linear\.weight": "whole() 4x32x48 @1",
            r".*experts\.input_linear\.weight": "whole() 4x16x32 @1",
            r".*experts\.output_linear\.weight": "whole() 4x32x16 @1.41",
            r".*kv_proj\.weight": "split(rows=2) 2*16x32 @1",
        },
    ),
    "mamba": (
        "MambaForCausalLM",
        "MambaConfig",
        {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 96, "state_size": 4},
        {
            r".*embeddings\.weight": "adamw",
            r".*(norm\w*\.weight|bias|A_log|D)": "adamw",
            r".*conv1d\.weight": "adamw decay",
            r".*in_proj\.weight": "split(rows=2) 2*64x32 @1.41",
            r".*x_proj\.weight": "split(rows=(2, 4, 4)) 2x64+2*4x64 @1",
            r".*dt_proj\.weight": "whole() 64x2 @5.66",
            r".*out_proj\.weight": "whole() 32x64 @1",
        },
    ),
    "mamba 2": (
        "Mamba2ForCausalLM",
        "Mamba2Config",
        {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "vocab_size": 96,
            "state_size": 8,
            "num_heads": 8,
            "head_dim": 8,
            "n_groups": 2,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 0,
        },
        {
            r".*embeddings\.weight": "adamw",
            r".*(norm\w*\.weight|bias|A_log|D)": "adamw",
            r".*conv1d\.weight": "adamw decay",
            r".*in_proj\.weight": "split(rows=(64, 64, 16, 16, 8)) 2*64x32+2*16x32+8x32 @1.41",
            r".*out_proj\.weight": "whole() 32x64 @1",
            **HEAD,
        },
    ),
    "wav2vec2": (
        "Wav2Vec2ForCTC",
        "Wav2Vec2Config",
        {
            **SIZES,
            "num_hidden_layers": 1,
            "vocab_size": 20,
            "conv_dim": [8] * 7,
            "num_conv_pos_embeddings": 16,
            "num_conv_pos_embedding_groups": 4,
        },
        {
            r".*(layer_norm\.weight|bias|masked_spec_embed)": "adamw",
            r".*conv_layers\.0\.conv\.weight": "flatten() 8x10 @1",
            r".*conv_layers\.[1-4]\.conv\.weight": "flatten() 8x24 @1",
            r".*conv_layers\.[56]\.conv\.weight": "flatten() 8x16 @1",
            r".*projection\.weight": "whole() 32x8 @2",
            r".*weight\.original0": "adamw",
            r".*weight\.original1": "flatten(groups=4) 4x8x128 @1",
            r".*attention\.\w+\.weight": SQUARE,
            r".*intermediate_dense\.weight": UP,
            r".*output_dense\.weight": DOWN,
            **HEAD,
        },
    ),
    "swin": (
        "SwinForImageClassification",
        "SwinConfig",
        {
            "embed_dim": 16,
            "depths": [1, 1],
            "num_heads": [2, 4],
            "image_size": 32,
            "patch_size": 4,
            "window_size": 4,
            "num_labels": 5,
        },
        {
            r".*relative_position_bias_table": "adamw",
            r".*(norm\w*\.weight|bias)": "adamw",
            r".*patch_embeddings\.projection\.weight": "flatten() 16x48 @1",
            r".*layers\.0\..*attention(?!.*bias_table).*weight": "whole() 16x16 @1",
            r".*layers\.1\..*attention(?!.*bias_table).*weight": SQUARE,
            r".*layers\.0\..*fc1\.weight": "whole() 64x16 @2",
            r".*layers\.0\..*fc2\.weight": "whole() 16x64 @1",
            r".*layers\.1\..*fc1\.weight": "whole() 128x32 @2",
            r".*layers\.1\..*fc2\.weight": "whole() 32x128 @1",
            r".*reduction\.weight": "whole() 32x64 @1",
            r"classifier\.weight": "adamw decay",
        },
    ),
}
"""Name -> (class, its config, options, expected)."""

TIMM: dict[str, tuple[dict[str, Any], Expected]] = {
    "vit_tiny_patch16_224": (
        {"embed_dim": 32, "depth": 2, "num_heads": 4, "img_size": 32},
        {
            r"cls_token|pos_embed": "adamw",
            r"(.*\.)?norm\d?\.(weight|bias)|.*(proj|qkv|fc1|fc2|head)\.bias": "adamw",
            r"patch_embed\.proj\.weight": "flatten() 32x768 @1",
            r".*qkv\.weight": "split(rows=3) 3*32x32 @1",
            r".*attn\.proj\.weight": SQUARE,
            r".*fc1\.weight": "whole() 128x32 @2",
            r".*fc2\.weight": "whole() 32x128 @1",
            r"head\.weight": "adamw decay",
        },
    ),
    "convnext_atto": (
        {"depths": (1, 1, 1, 1), "dims": (8, 16, 24, 32)},
        {
            r".*(norm|stem\.1|downsample\.0)\.(weight|bias)": "adamw",
            r".*(fc\d?|conv_dw|stem\.0|downsample\.1|gamma)(\.bias)?": "adamw",
            r"stem\.0\.weight": "flatten() 8x48 @1",
            r".*conv_dw\.weight": "adamw decay",
            r"stages\.0\..*fc1\.weight": "flatten() 32x8 @2",
            r"stages\.0\..*fc2\.weight": "flatten() 8x32 @1",
            r"stages\.1\..*fc1\.weight": "flatten() 64x16 @2",
            r"stages\.1\..*fc2\.weight": "flatten() 16x64 @1",
            r"stages\.2\..*fc1\.weight": "flatten() 96x24 @2",
            r"stages\.2\..*fc2\.weight": "flatten() 24x96 @1",
            r"stages\.3\..*fc1\.weight": "flatten() 128x32 @2",
            r"stages\.3\..*fc2\.weight": "flatten() 32x128 @1",
            r"stages\.1\.downsample\.1\.weight": "flatten() 16x32 @1",
            r"stages\.2\.downsample\.1\.weight": "flatten() 24x64 @1",
            r"stages\.3\.downsample\.1\.weight": "flatten() 32x96 @1",
            r"head\.fc\.weight": "adamw decay",
        },
    ),
    "resnet18": (
        {"layers": (1, 1, 1, 1), "channels": (8, 16, 24, 32)},
        {
            r".*(bn\d|downsample\.1)\.(weight|bias)|fc\.bias": "adamw",
            r"conv1\.weight": "flatten() 64x147 @1",
            r"layer1\.0\.conv1\.weight": "flatten() 8x576 @1",
            r"layer1\.0\.conv2\.weight": "flatten() 8x72 @1",
            r"layer1\.0\.downsample\.0\.weight": "flatten() 8x64 @1",
            r"layer2\.0\.conv1\.weight": "flatten() 16x72 @1",
            r"layer2\.0\.conv2\.weight": "flatten() 16x144 @1",
            r"layer2\.0\.downsample\.0\.weight": "flatten() 16x8 @1.41",
            r"layer3\.0\.conv1\.weight": "flatten() 24x144 @1",
            r"layer3\.0\.conv2\.weight": "flatten() 24x216 @1",
            r"layer3\.0\.downsample\.0\.weight": "flatten() 24x16 @1.22",
            r"layer4\.0\.conv1\.weight": "flatten() 32x216 @1",
            r"layer4\.0\.conv2\.weight": "flatten() 32x288 @1",
            r"layer4\.0\.downsample\.0\.weight": "flatten() 32x24 @1.15",
            r"fc\.weight": "adamw decay",
        },
    ),
}
"""Name -> (options, expected)."""

TIMM_PARTS: dict[str, Expected] = {
    "resnext50_32x4d": {r"layer1\.\d\.conv2\.weight": "flatten(groups=32) 32x4x36 @1"},
    "efficientnet_b0": {r"conv_head\.weight": "flatten() 1280x320 @2", r"classifier\.weight": "adamw decay"},
    "swin_tiny_patch4_window7_224": {r".*bias_table": "adamw", r"layers\.0.*qkv\.weight": "split(rows=3) 3*96x96 @1"},
    "mixer_s32_224": {r"blocks\.0\.mlp_tokens\.fc1\.weight": "whole() 256x49 @2.29", r"head\.weight": "adamw decay"},
    "levit_128s": {
        r"stages\.0\.blocks\.\d\.attn\.qkv\.linear\.weight": "split(rows=(16, 16, 32), groups=4) 2*64x128+128x128 @1",
        r".*attention_biases": "adamw",
    },
    "vgg11": {r"pre_logits\.fc2\.weight": "flatten() 4096x4096 @1", r"head\.fc\.weight": "adamw decay"},
    "eva02_tiny_patch14_224": {r".*fc1\.weight": "split(rows=2) 2*512x192 @1.63"},
    "nfnet_l0": {r".*gain": "adamw"},
}
"""Some parameters of larger models, built on the meta device."""
