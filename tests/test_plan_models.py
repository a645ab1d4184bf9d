"""Shapes are those of the models: totals as published, files read back, the lab's own network and its routing."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from torch import nn

from inexact_muon.routing.routes import routes
from inexact_muon_lab.plan import files
from inexact_muon_lab.plan.models import KNOWN, Model, from_config
from inexact_muon_lab.plan.recorder import fake_h100
from inexact_muon_lab.plan.step import module
from inexact_muon_lab.problems.nanogpt import GPT
from inexact_muon_lab.spec import spec as lab

DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "first_k_dense_replace": 3,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "num_attention_heads": 128,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 129280,
}


@pytest.mark.parametrize(
    ("name", "published", "within"),
    [
        ("gpt2-124m", 124_439_808, 0.0),
        ("llama3-8b", 8_030_261_248, 0.0),
        ("llama3-70b", 70_553_706_496, 0.0),
        ("kimi-k2", 1.04e12, 0.014),  # the report's own total; its config.json gives 1.3% less
    ],
)
def test_published_totals(name: str, published: float, within: float) -> None:
    assert KNOWN[name].parameters == pytest.approx(published, rel=within, abs=0)


def test_experts() -> None:
    """Active parameters with the table: 32.6e9 (K2's report) and 37e9 of 671e9 (DeepSeek-V3's)."""
    table = 163840 * 7168
    assert KNOWN["kimi-k2"].active_parameters + table == pytest.approx(32.6e9, rel=0.01)
    v3 = from_config(DEEPSEEK_V3, "v3", 1, "")
    assert v3.parameters == pytest.approx(671e9, rel=0.001)
    assert v3.active_parameters + 129280 * 7168 == pytest.approx(37e9, rel=0.02)
    experts = [w for w in KNOWN["kimi-k2"].weights if "mlp.experts." in w.name]
    assert sum(w.count * w.shape[0] for w in experts) == 3 * 60 * 384
    assert {tuple(sorted(w.shape[1:])) for w in experts} == {(2048, 7168)}


def test_a_tied_head_counts_once() -> None:
    config = {"model_type": "llama", "hidden_size": 8, "num_hidden_layers": 1, "intermediate_size": 16}
    config |= {"num_attention_heads": 2, "vocab_size": 10}
    untied = from_config(config, "x", 1, "")
    tied = from_config({**config, "tie_word_embeddings": True}, "x", 1, "")
    assert untied.parameters == 2 * 80 + 4 * 64 + 3 * 128 + 3 * 8
    assert untied.parameters - tied.parameters == 80
    assert untied.active_parameters == tied.active_parameters


@pytest.mark.parametrize("positions", ["rotary", "learned"])
def test_the_labs_network_and_its_routing(positions: str, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(f'batch = 4\n[problem]\nname = "nanogpt"\nsize = "tiny"\npositions = "{positions}"\n')
    model = files.find(str(path))
    size = lab.load(path).problem
    assert isinstance(size, lab.NanoGPT)
    network = GPT(size, 256)
    assert model.parameters == sum(p.numel() for p in network.parameters())
    assert model.tokens == 4 * size.context
    assert {w.name: w.shape for w in model.weights} == {n: tuple(p.shape) for n, p in network.named_parameters()}
    here, there = ({route.name: route.algorithm for route in routes(m)} for m in (bare(model), network))
    assert here == there


def bare(model: Model) -> nn.Module:
    """The modules that are recorded."""
    with fake_h100():
        return module(model.weights)


def test_matrices_get_the_oracle_and_nothing_else() -> None:
    for name, tables in (("gpt2-124m", {"wte", "wpe"}), ("llama3-8b", {"embed_tokens", "lm_head"})):
        found = {route.name: route for route in routes(bare(KNOWN[name]))}
        others = {n.split(".")[0] for n, r in found.items() if r.algorithm == "adamw" and r.parameter.ndim > 1}
        assert others == tables
    small = {**DEEPSEEK_V3, "num_hidden_layers": 4, "n_routed_experts": 8}
    found = {route.name: route for route in routes(bare(from_config(small, "v3", 1, "")))}
    assert found["layers.0.mlp.experts.down_proj"].algorithm == "lmo"
    assert found["layers.0.mlp.experts.up_proj"].role == "expert"


def shapes(model: Model) -> Counter[tuple[int, ...]]:
    found: Counter[tuple[int, ...]] = Counter()
    for w in model.weights:
        found[w.shape] += w.count
    return found


def write(path: Path, tensors: dict[str, tuple[str, list[int]]]) -> Path:
    header = {name: {"dtype": d, "shape": s, "data_offsets": [0, 0]} for name, (d, s) in tensors.items()}
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    return path


def test_safetensors_and_config_agree(tmp_path: Path) -> None:
    config = {"model_type": "llama", "hidden_size": 8, "num_hidden_layers": 2, "intermediate_size": 24}
    config |= {"num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 10}
    (tmp_path / "config.json").write_text(json.dumps(config))
    layer = {"self_attn.q_proj": [8, 8], "self_attn.k_proj": [4, 8], "self_attn.v_proj": [4, 8]}
    layer |= {"self_attn.o_proj": [8, 8], "mlp.gate_proj": [24, 8], "mlp.up_proj": [24, 8], "mlp.down_proj": [8, 24]}
    layer |= {"input_layernorm": [8], "post_attention_layernorm": [8]}
    ends = {"model.embed_tokens.weight": ("BF16", [10, 8]), "model.norm.weight": ("BF16", [8])}
    ends |= {"lm_head.weight": ("BF16", [10, 8]), "inv_freq": ("I64", [3, 3])}
    for i in range(2):
        tensors = {f"model.layers.{i}.{name}.weight": ("BF16", shape) for name, shape in layer.items()}
        write(tmp_path / f"{i}.safetensors", {**tensors, **(ends if i else {})})
    headers, read = files.find(str(tmp_path)), files.find(str(tmp_path / "config.json"))
    assert headers.parameters == read.parameters
    assert headers.active_parameters == read.active_parameters
    assert shapes(headers) == shapes(read)
    sides = {w.name.split(".")[-2]: w.tp_side for w in headers.weights if len(w.shape) == 2}
    assert sides == {w.name.split(".")[-2]: w.tp_side for w in read.weights if len(w.shape) == 2}
    assert sides["down_proj"] == sides["o_proj"] == 1 != sides["up_proj"]


def test_odd_tensors(tmp_path: Path) -> None:
    tensors = {
        "conv.weight": ("F32", [4, 3, 2, 2]),
        "experts": ("F32", [5, 6, 7]),
        **{f"layers.0.mlp.experts.{i}.up_proj.weight": ("F32", [6, 8]) for i in range(3)},
        "h.0.attn.c_attn.weight": ("F32", [24, 8]),
    }
    model = files.find(str(write(tmp_path / "a.safetensors", {**tensors, "h.bias": ("F32", [9])})), tokens=7)
    assert shapes(model) == {(4, 3, 2, 2): 1, (5, 6, 7): 1, (3, 6, 8): 1, (24, 8): 1, (9,): 1}
    assert model.tokens == 7
    assert {name for name, _ in bare(model).named_parameters()} == {w.name for w in model.weights}
    fused = next(route for route in routes(bare(model)) if "c_attn" in route.name)
    assert list(fused.view.shapes((24, 8))) == [(8, 8)] * 3


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", '{"model_type": "lama"}', "cannot plan model_type 'lama': did you mean 'llama'?"),
        ("config.json", '{"model_type": "gpt2", "n_embd": 8}', "gpt2 needs the field n_layer"),
        ("config.json", "[1]", "expected a JSON object"),
        ("config.json", "{", "not valid JSON"),
        ("a.safetensors", "not a header at all", "is not a safetensors file"),
        ("run.toml", '[problem]\nname = "cnn"\n', "shapes of nanogpt only"),
        ("config.json", '{"model_type": "llama", "hidden_size": "8", "num_hidden_layers": 2}', "needs the field"),
        ("a.safetensors", (8).to_bytes(8, "little").decode() + '{"a": 1}', "lacks dtype or shape"),
        ("model.bin", "", "neither a known model nor"),
    ],
)
def test_bad_files(name: str, content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=re.escape(message)):
        files.find(str(tmp_path / name))


def test_unknown_names() -> None:
    with pytest.raises(ValueError, match="did you mean 'llama3-8b'"):
        files.find("lama3-8b")
    assert files.find("GPT2-124M") is KNOWN["gpt2-124m"]


def test_a_size_that_is_no_number() -> None:
    config = {"model_type": "gpt2", "n_embd": 8, "n_layer": "two", "n_positions": 4, "vocab_size": 9}
    with pytest.raises(ValueError, match="a size of gpt2 is not a number"):
        from_config(config, "x", 1, "")


def test_a_missing_file() -> None:
    with pytest.raises(ValueError, match=r"nowhere/config.json: no such file"):
        files.find("nowhere/config.json")


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no .safetensors"):
        files.find(str(tmp_path))
