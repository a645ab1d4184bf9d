"""The weights of a model as shapes with counts: known models, and Hugging Face configurations of their families."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from inexact_muon._text import nearest

ROW_PARALLEL = ("o_proj", "down_proj", "c_proj", "wo", "w2", "out", "down", "out_proj", "dense_4h_to_h")
"""Layers whose input is divided under tensor parallelism (Megatron's row-parallel); others divide their output."""

LARGEST = 2**40
"""Maximum side, count and tokens per step."""


@dataclass(frozen=True)
class Weight:
    """`count` tensors of one shape.

    Attributes:
        shape: (out, in) of a matrix; one number for a vector.
        lmo: whether it gets the oracle; the others get AdamW (routed as in `Muon.for_model`).
        active: fraction of the tensors used per token; 0 for lookup tables.
    """

    name: str
    shape: tuple[int, ...]
    count: int = 1
    lmo: bool = True
    active: float = 1.0

    def __post_init__(self) -> None:
        if any(not 1 <= size <= LARGEST for size in (self.count, *self.shape)):
            raise ValueError(f"{self.name}: {self.count} tensors of shape {self.shape}: sizes go from 1 to 2^40")
        if self.lmo and (len(self.shape) != 2 or min(self.shape) < 2):
            raise ValueError(f"{self.name} of shape {self.shape} cannot get a matrix oracle")

    @property
    def entries(self) -> int:
        """Number of entries of one tensor."""
        return prod(self.shape)

    @property
    def tp_side(self) -> int:
        """The side that tensor parallelism divides: 1 (in) for row-parallel layers, else 0 (out)."""
        return 1 if any(word in ROW_PARALLEL for word in self.name.split(".")) else 0


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

    @property
    def matrices(self) -> tuple[Weight, ...]:
        """Weights that get the oracle."""
        return tuple(w for w in self.weights if w.lmo)

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return sum(w.entries * w.count for w in self.weights)

    @property
    def lmo_parameters(self) -> int:
        """Number of parameters that get the oracle."""
        return sum(w.entries * w.count for w in self.matrices)

    @property
    def active_parameters(self) -> float:
        """Number of parameters that multiply a token: N in 6 N D."""
        return sum(w.entries * w.count * w.active for w in self.weights)


def gpt2(c: Mapping[str, Any]) -> list[Weight]:
    """GPT-2: learned positions, biases, tied head; c_attn is three matrices, as the optimizer splits it."""
    d, layers = c["n_embd"], c["n_layer"]
    inner = c.get("n_inner") or 4 * d
    return [
        Weight("wte (tied head)", (c["vocab_size"], d), lmo=False),
        Weight("wpe", (c["n_positions"], d), lmo=False, active=0.0),
        Weight("attn.c_attn", (d, d), 3 * layers),
        Weight("attn.c_proj", (d, d), layers),
        Weight("mlp.c_fc", (inner, d), layers),
        Weight("mlp.c_proj", (d, inner), layers),
        Weight("biases", (3 * d + d + inner + d,), layers, lmo=False),
        Weight("norms", (2 * d,), 2 * layers + 1, lmo=False),
    ]


def llama(c: Mapping[str, Any]) -> list[Weight]:
    """Llama: grouped-query attention, gated MLP, RMS norms, no biases."""
    d, layers, heads = c["hidden_size"], c["num_hidden_layers"], c["num_attention_heads"]
    width = c.get("head_dim") or d // heads
    keys = (c.get("num_key_value_heads") or heads) * width
    return [
        *_tables(c),
        Weight("self_attn.q_proj", (heads * width, d), layers),
        Weight("self_attn.k_proj", (keys, d), layers),
        Weight("self_attn.v_proj", (keys, d), layers),
        Weight("self_attn.o_proj", (d, heads * width), layers),
        *_mlp("mlp", d, c["intermediate_size"], layers),
        Weight("norms", (d,), 2 * layers + 1, lmo=False),
    ]


def deepseek(c: Mapping[str, Any]) -> list[Weight]:
    """DeepSeek-V3 and Kimi K2: latent attention, a few dense layers, then routed and shared experts."""
    d, layers, heads = c["hidden_size"], c["num_hidden_layers"], c["num_attention_heads"]
    rope, nope, value = c["qk_rope_head_dim"], c["qk_nope_head_dim"], c["v_head_dim"]
    q_rank, kv_rank, experts = c["q_lora_rank"], c["kv_lora_rank"], c["n_routed_experts"]
    dense, inner = c["first_k_dense_replace"], c["moe_intermediate_size"]
    sparse = layers - dense
    return [
        *_tables(c),
        Weight("self_attn.q_a_proj", (q_rank, d), layers),
        Weight("self_attn.q_b_proj", (heads * (nope + rope), q_rank), layers),
        Weight("self_attn.kv_a_proj_with_mqa", (kv_rank + rope, d), layers),
        Weight("self_attn.kv_b_proj", (heads * (nope + value), kv_rank), layers),
        Weight("self_attn.o_proj", (d, heads * value), layers),
        *(_mlp("mlp", d, c["intermediate_size"], dense) if dense else ()),
        Weight("mlp.gate", (experts, d), sparse),
        *_mlp("mlp.shared_experts", d, inner * c["n_shared_experts"], sparse),
        *_mlp("mlp.experts", d, inner, sparse * experts, c["num_experts_per_tok"] / experts),
        Weight("norms", (2 * d + q_rank + kv_rank,), layers, lmo=False),
        Weight("norm", (d,), lmo=False),
    ]


def _tables(c: Mapping[str, Any]) -> list[Weight]:
    shape = (c["vocab_size"], c["hidden_size"])
    if c.get("tie_word_embeddings"):
        return [Weight("embed_tokens (tied head)", shape, lmo=False)]
    return [Weight("embed_tokens", shape, lmo=False, active=0.0), Weight("lm_head", shape, lmo=False)]


def _mlp(name: str, d: int, inner: int, count: int, active: float = 1.0) -> list[Weight]:
    shapes = {"gate_proj": (inner, d), "up_proj": (inner, d), "down_proj": (d, inner)}
    return [Weight(f"{name}.{layer}", shape, count, active=active) for layer, shape in shapes.items()]


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
