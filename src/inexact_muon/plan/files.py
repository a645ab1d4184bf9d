"""Reads a model by name or from a file: config.json, safetensors (headers only), or a run spec of the lab."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

from inexact_muon._text import nearest
from inexact_muon.lab.data.text import GPT2_VOCABULARY
from inexact_muon.lab.spec import spec as lab
from inexact_muon.plan.models import KNOWN, Model, Weight, from_config

TOKENS = 2**20
"""Default number of tokens per step."""

NOT_LMO = re.compile(r"embed|wte|wpe|lm_head|\bhead\b|norm|\bln_|classifier|unembed|logits")
FUSED = re.compile(r"qkv|c_attn|query_key_value|in_proj")
LARGEST_HEADER = 100 * 2**20
"""The limit of the safetensors library."""


def find(text: str, tokens: int | None = None) -> Model:
    """The model of a name or path; `tokens` overrides its own tokens per step."""
    path = Path(text)
    if text.lower() in KNOWN:
        model = KNOWN[text.lower()]
    elif path.suffix in (".safetensors", ".json", ".toml") and not path.exists():
        raise ValueError(f"{text}: no such file")
    elif path.is_dir() or path.suffix == ".safetensors":
        model = from_safetensors(path)
    elif path.suffix == ".json":
        model = from_config(_json(path.read_text(encoding="utf-8"), path), path.name, TOKENS, f"sizes from {path.name}")
    elif path.suffix == ".toml":
        model = from_spec(path)
    else:
        kinds = "a config.json, a .safetensors file or folder, or a run spec (.toml)"
        raise ValueError(f"{text!r} is neither a known model nor {kinds}; {nearest(text, KNOWN)}")
    return model if tokens is None else Model(model.name, model.weights, tokens, model.source)


def from_safetensors(path: Path) -> Model:
    """The floating point tensors of a file, or of all files of a folder; equal shapes are counted together.

    Matrices get the oracle unless their name suggests an embedding, a head or a norm. 3-D tensors are stacks of
    matrices, kernels (4-D) are out x (in * kernel), fused query-key-value weights of three square blocks count as
    three. The number of
    experts per token is not in the file: all count as active.
    """
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    if not files:
        raise ValueError(f"{path} holds no .safetensors file")
    found: Counter[tuple[str, tuple[int, ...]]] = Counter()
    for file in files:
        for name, dtype, shape in _header(file):
            if dtype.startswith(("F", "BF")):
                found[re.sub(r"\.\d+(?=\.)", "", name).removesuffix(".weight"), shape] += 1
    weights = tuple(_weight(name, shape, count) for (name, shape), count in found.items() if 0 not in shape)
    return Model(path.name, weights, TOKENS, f"shapes from the header of {path.name}; every expert counted as active")


def _weight(name: str, shape: tuple[int, ...], count: int) -> Weight:
    if len(shape) == 3:
        shape, count = shape[1:], count * shape[0]
    elif len(shape) == 4:
        shape = shape[0], shape[1] * shape[2] * shape[3]
    lmo = len(shape) == 2 and min(shape) > 1 and not NOT_LMO.search(name.lower())
    if lmo and FUSED.search(name) and max(shape) == 3 * min(shape):
        shape, count = (min(shape), min(shape)), 3 * count
    table = len(shape) == 2 and bool(re.search(r"embed_tokens|wpe|\bembedding\b", name.lower()))
    return Weight(name, shape, count, lmo, 0.0 if table else 1.0)


def _header(path: Path) -> list[tuple[str, str, tuple[int, ...]]]:
    """(name, dtype, shape), from the JSON after its length in the first eight bytes (little-endian)."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= LARGEST_HEADER:
            raise ValueError(f"{path} is not a safetensors file: its header would have {length} bytes")
        header = _json(file.read(length), path)
    header.pop("__metadata__", None)
    try:
        return [(name, str(entry["dtype"]), tuple(map(int, entry["shape"]))) for name, entry in header.items()]
    except (KeyError, TypeError):
        raise ValueError(f"{path}: a tensor in the header lacks dtype or shape") from None


def _json(text: str | bytes, path: Path) -> dict[str, Any]:
    try:
        read = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(read, dict):
        raise ValueError(f"{path}: expected a JSON object, got {type(read).__name__}")
    return read


def from_spec(path: Path) -> Model:
    """The small GPT of a run spec, with the tokens of its batch."""
    run = lab.load(path)
    if not isinstance(run.problem, lab.NanoGPT):
        raise ValueError(f"{path}: plan knows the shapes of nanogpt only; give the safetensors of a {path.stem} model")
    size = run.problem
    return Model(path.name, tuple(nanogpt(size, _vocabulary(run))), run.batch * size.context, f"sizes from {path.name}")


def nanogpt(size: lab.NanoGPT, vocabulary: int) -> list[Weight]:
    """The lab's GPT: no weights in norms, no biases, untied head."""
    d, layers = size.width, size.layers
    learned = [Weight("positions", (size.context, d), lmo=False, active=0.0)] if size.positions == "learned" else []
    return [
        Weight("embedding", (vocabulary, d), lmo=False, active=0.0),
        *learned,
        Weight("blocks.qkv", (d, d), 3 * layers),
        Weight("blocks.out", (d, d), layers),
        Weight("blocks.up", (4 * d, d), layers),
        Weight("blocks.down", (d, 4 * d), layers),
        Weight("head", (vocabulary, d), lmo=False),
    ]


def _vocabulary(run: lab.RunSpec) -> int:
    tokens = isinstance(run.data, lab.Shards) or (isinstance(run.data, lab.Text) and run.data.tokens == "gpt2")
    return GPT2_VOCABULARY if tokens else 256
