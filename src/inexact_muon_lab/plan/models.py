"""The weights of a model as shapes with counts: known models, and Hugging Face configurations of their families."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from inexact_muon._text import nearest

ROW_PARALLEL = ("o_proj", "down_proj", "c_proj", "wo", "w2", "out", "down", "out_proj", "dense_4h_to_h")
"""Layers whose input is divided under tensor parallelism (Megatron's row-parallel); others divide their output."""

TABLE = re.compile(r"embed|wte|wpe|positions")
LARGEST = 2**40
"""Maximum side and tokens per step."""

MOST = 5000
"""Maximum number of tensors: a recording of more would take for ever."""


def looked_up(name: str) -> bool:
    """Whether a weight of this name is an embedding."""
    return bool(TABLE.search(name.lower()))


@dataclass(frozen=True)
class Weight:
    """`count` parameters of one shape.

    Attributes:
        name: of the parameter in the model; "#" is the number of the layer.
        shape: (out, in) of a matrix, (experts, out, in) of a stack, one number for a vector.
        active: fraction used per token; 0 for lookup tables.
    """

    name: str
    shape: tuple[int, ...]
    count: int = 1
    active: float = 1.0

    def __post_init__(self) -> None:
        if any(not 1 <= size <= LARGEST for size in (self.count, *self.shape)):
            raise ValueError(f"{self.name}: {self.count} tensors of shape {self.shape}: sizes go from 1 to 2^40")

    @property
    def names(self) -> list[str]:
        """Of all of its parameters."""
        return [self.name.replace("#", str(i)) for i in range(self.count)]

    @property
    def entries(self) -> int:
        """Number of entries of all of them."""
        return prod(self.shape) * self.count

    @property
    def tp_side(self) -> int:
        """The side that tensor parallelism divides: the last (in) of row-parallel layers, else the rows (out)."""
        row = any(word in ROW_PARALLEL for word in self.name.split("."))
        return len(self.shape) - (1 if row else 2) if len(self.shape) < 4 else 0


@dataclass(frozen=True)
class Model:
    """The weights, their source, and the tokens per step."""

    name: str
    weights: tuple[Weight, ...]
    tokens: int
    source: str

    def __post_init__(self) -> None:
        if not 1 <= self.tokens <= LARGEST:
            raise ValueError(f"tokens must lie between 1 and 2^40, got {self.tokens}")
        if (count := sum(w.count for w in self.weights)) > MOST:
            raise ValueError(f"{self.name} has {count:,} parameters to record, at most {MOST:,} can be planned")

    @property
    def parameters(self) -> int:
        return sum(w.entries for w in self.weights)

    @property
    def active_parameters(self) -> float:
        """Number of parameters that multiply a token: N in 6 N D."""
        return sum(w.entries * w.active for w in self.weights)


def gpt2(c: Mapping[str, Any]) -> list[Weight]:
    """GPT-2: learned positions, biases, tied head; matrices out x in, unlike in its checkpoints."""
    d, layers = c["n_embd"], c["n_layer"]
    inner = c.get("n_inner") or 4 * d
    shapes = {"attn.c_attn": (3 * d, d), "attn.c_proj": (d, d), "mlp.c_fc": (inner, d), "mlp.c_proj": (d, inner)}
    norms = {name: (d,) for norm in ("ln_1", "ln_2") for name in (f"{norm}.weight", f"{norm}.bias")}
    return [
        Weight("wte.weight", (c["vocab_size"], d)),
        Weight("wpe.weight", (c["n_positions"], d), active=0.0),
        *_layers("h.#", layers, {f"{name}.weight": shape for name, shape in shapes.items()}),
        *_layers("h.#", layers, {f"{name}.bias": shape[:1] for name, shape in shapes.items()} | norms),
        *(Weight(f"ln_f.{own}", (d,)) for own in ("weight", "bias")),
    ]


def llama(c: Mapping[str, Any]) -> list[Weight]:
    """Llama: grouped-query attention, gated MLP, RMS norms, no biases."""
    d, heads = c["hidden_size"], c["num_attention_heads"]
    width = c.get("head_dim") or d // heads
    keys = (c.get("num_key_value_heads") or heads) * width
    shapes = {
        "self_attn.q_proj.weight": (heads * width, d),
        "self_attn.k_proj.weight": (keys, d),
        "self_attn.v_proj.weight": (keys, d),
        "self_attn.o_proj.weight": (d, heads * width),
        **_mlp("mlp", d, c["intermediate_size"]),
    }
    return [*_tables(c), *_layers("layers.#", c["num_hidden_layers"], {**shapes, **_norms(d)})]


def deepseek(c: Mapping[str, Any]) -> list[Weight]:
    """DeepSeek-V3 and Kimi K2: latent attention, a few dense layers, then shared experts and stacks of routed ones."""
    d, layers, heads = c["hidden_size"], c["num_hidden_layers"], c["num_attention_heads"]
    rope, nope, value = c["qk_rope_head_dim"], c["qk_nope_head_dim"], c["v_head_dim"]
    q_rank, kv_rank, experts = c["q_lora_rank"], c["kv_lora_rank"], c["n_routed_experts"]
    dense, inner = c["first_k_dense_replace"], c["moe_intermediate_size"]
    attention = {
        "self_attn.q_a_proj.weight": (q_rank, d),
        "self_attn.q_b_proj.weight": (heads * (nope + rope), q_rank),
        "self_attn.kv_a_proj_with_mqa.weight": (kv_rank + rope, d),
        "self_attn.kv_b_proj.weight": (heads * (nope + value), kv_rank),
        "self_attn.o_proj.weight": (d, heads * value),
        "self_attn.q_a_layernorm.weight": (q_rank,),
        "self_attn.kv_a_layernorm.weight": (kv_rank,),
    }
    shared = {"mlp.gate.weight": (experts, d), **_mlp("mlp.shared_experts", d, inner * c["n_shared_experts"])}
    routed = {"gate_proj": (experts, inner, d), "up_proj": (experts, inner, d), "down_proj": (experts, d, inner)}
    return [
        *_tables(c),
        *_layers("layers.#", layers, attention),
        *(_layers("dense.#", dense, _mlp("mlp", d, c["intermediate_size"])) if dense else ()),
        *_layers("layers.#", layers - dense, shared),
        *_layers("layers.#.mlp.experts", layers - dense, routed, active=c["num_experts_per_tok"] / experts),
        *_layers("layers.#", layers, _norms(d)),
    ]


def _tables(c: Mapping[str, Any]) -> list[Weight]:
    shape, tied = (c["vocab_size"], c["hidden_size"]), bool(c.get("tie_word_embeddings"))
    head = [] if tied else [Weight("lm_head.weight", shape)]
    return [Weight("embed_tokens.weight", shape, active=float(tied)), *head, Weight("norm.weight", shape[1:])]


def _layers(prefix: str, count: int, shapes: Mapping[str, tuple[int, ...]], active: float = 1.0) -> list[Weight]:
    return [Weight(f"{prefix}.{name}", shape, count, active) for name, shape in shapes.items()]


def _mlp(prefix: str, d: int, inner: int) -> dict[str, tuple[int, ...]]:
    shapes = {"gate_proj": (inner, d), "up_proj": (inner, d), "down_proj": (d, inner)}
    return {f"{prefix}.{name}.weight": shape for name, shape in shapes.items()}


def _norms(d: int) -> dict[str, tuple[int, ...]]:
    return dict.fromkeys(("input_layernorm.weight", "post_attention_layernorm.weight"), (d,))


FAMILIES: dict[str, Callable[[Mapping[str, Any]], list[Weight]]] = {
    "gpt2": gpt2,
    "llama": llama,
    "mistral": llama,
    "deepseek_v3": deepseek,
    "kimi_k2": deepseek,
}
"""`model_type` of a configuration -> its weights. Mistral has Llama's matrices."""


def from_config(config: Mapping[str, Any], name: str, tokens: int, source: str) -> Model:
    """The model of a Hugging Face config.json; of a multimodal one, its `text_config`."""
    config = config.get("text_config") or config
    kind = str(config.get("model_type"))
    if kind not in FAMILIES:
        raise ValueError(f"{name}: cannot plan model_type {kind!r}: {nearest(kind, FAMILIES)}; or give its safetensors")
    try:
        return Model(name, tuple(FAMILIES[kind](config)), tokens, source)
    except KeyError as error:
        raise ValueError(f"{name}: {kind} needs the field {error.args[0]}") from None
    except (TypeError, ArithmeticError) as error:
        raise ValueError(f"{name}: a size of {kind} is not a number that can be used: {error}") from None


def _llama3(width: int, inner: int, layers: int, heads: int) -> dict[str, Any]:
    sizes = {"hidden_size": width, "intermediate_size": inner, "num_hidden_layers": layers}
    rest = {"num_attention_heads": heads, "num_key_value_heads": 8, "vocab_size": 128256}
    return {"model_type": "llama", **sizes, **rest}


_GPT2 = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_positions": 1024, "vocab_size": 50257}
_K2 = {
    "model_type": "kimi_k2",
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "first_k_dense_replace": 1,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 384,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "num_attention_heads": 64,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 163840,
}
_META = (
    "sizes from config.json of meta-llama/Meta-Llama-3; 4M tokens a step is where the Llama 3 report starts its largest"
)

KNOWN: dict[str, Model] = {
    "gpt2-124m": from_config(
        _GPT2, "gpt2-124m", 2**19, "sizes from config.json of openai-community/gpt2; tokens a step of GPT-3's 125M"
    ),
    "llama3-8b": from_config(_llama3(4096, 14336, 32, 32), "llama3-8b", 2**22, _META),
    "llama3-70b": from_config(_llama3(8192, 28672, 80, 64), "llama3-70b", 2**22, _META),
    "kimi-k2": from_config(
        _K2, "kimi-k2", 67 * 10**6, "sizes from config.json of moonshotai/Kimi-K2; tokens a step from its report"
    ),
}
"""Known models; tests compare their totals with the published ones."""
