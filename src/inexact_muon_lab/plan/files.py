"""Reads a model by name or from a file: config.json, safetensors (headers only), or a run spec of the lab."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from inexact_muon._text import nearest
from inexact_muon_lab.plan.models import KNOWN, Model, Weight, from_config, looked_up

TOKENS = 2**20
"""Default number of tokens per step."""

EXPERT = re.compile(r"\.experts\.\d+\.(.+?)(\.weight)?$")
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
    """The floating point tensors of a file, or of all files of a folder; experts of a layer become one stack.

    The number of experts per token is not in the file: all count as active.
    """
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    if not files:
        raise ValueError(f"{path} holds no .safetensors file")
    shapes: dict[str, tuple[int, ...]] = {}
    for file in files:
        for name, dtype, shape in _header(file):
            if not dtype.startswith(("F", "BF")) or 0 in shape:
                continue
            stacked = EXPERT.sub(r".experts.\1", name)
            before = shapes.get(stacked, (0,))[0] if stacked != name and len(shape) == 2 else None
            shapes[name if before is None else stacked] = shape if before is None else (before + 1, *shape)
    tied = not any("head" in name for name in shapes)
    active = [float(not looked_up(name) or (tied and "wpe" not in name)) for name in shapes]
    weights = [Weight(name, shape, 1, used) for (name, shape), used in zip(shapes.items(), active, strict=True)]
    source = f"shapes from the header of {path.name}; every expert counted as active"
    return Model(path.name, tuple(weights), TOKENS, source)


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
    import torch

    from inexact_muon_lab.data.text import GPT2_VOCABULARY
    from inexact_muon_lab.problems.nanogpt import GPT
    from inexact_muon_lab.spec import spec as lab

    run = lab.load(path)
    if not isinstance(run.problem, lab.NanoGPT):
        raise ValueError(f"{path}: plan knows the shapes of nanogpt only; give the safetensors of a {path.stem} model")
    shards = isinstance(run.data, lab.Shards) or (isinstance(run.data, lab.Text) and run.data.tokens == "gpt2")
    with torch.device("meta"):
        network = GPT(run.problem, GPT2_VOCABULARY if shards else 256)
    shapes = {name: tuple(p.shape) for name, p in network.named_parameters()}
    weights = (Weight(name, shape, 1, float(not looked_up(name))) for name, shape in shapes.items())
    return Model(path.name, tuple(weights), run.batch * run.problem.context, f"sizes from {path.name}")
