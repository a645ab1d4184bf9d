"""Tokens for language models, cut into windows: text as bytes or as GPT-2 tokens, or shards such as FineWeb's.

A shard has a header of 256 int32 (20240520, the version 1 and the number of tokens), then uint16 tokens; it is
memory-mapped.
"""

from __future__ import annotations

import shutil
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from inexact_muon_lab.data.order import examples
from inexact_muon_lab.errors import LabError
from inexact_muon_lab.extras import require
from inexact_muon_lab.spec.spec import Shards, Text

Batch = tuple[NDArray[np.int64], NDArray[np.int64]]
GPT2_VOCABULARY = 50304
"""50257 tokens, rounded up to a multiple of 128."""

MAGIC, VERSION, HEADER = 20240520, 1, 1024
REPOSITORY = "kjj0/fineweb10B-gpt2"
"""Data set on huggingface.co: FineWeb's 10B sample in GPT-2 tokens."""


@dataclass(frozen=True)
class Tokens:
    """Token arrays (memory-mapped or not); validation data is the last part or separate files."""

    train: tuple[NDArray[np.integer], ...]
    validation: tuple[NDArray[np.integer], ...]
    vocabulary: int
    name: str


def read_stdlib() -> Tokens:
    """The modules of this Python's standard library, in alphabetical order; about 4 MB of code and prose."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return _bytes(b"".join(file.read_bytes() for file in files), "stdlib")


def read_text(data: Text) -> Tokens:
    """A file, or the files below a folder in alphabetical order, without hidden ones."""
    path = Path(data.path).expanduser()
    if not path.exists():
        raise LabError(f"data.path: there is no {path}; give a text file or a folder of them")
    below = path.rglob("*") if path.is_dir() else [path]
    files = sorted(p for p in below if p == path or (p.is_file() and not p.name.startswith(".")))
    content = b"".join(file.read_bytes() for file in files)
    if not content:
        raise LabError(f"data.path: {path} holds no text")
    return _bytes(content, str(path)) if data.tokens == "bytes" else _gpt2(content, path)


def _bytes(content: bytes, name: str) -> Tokens:
    return split(np.frombuffer(content, dtype=np.uint8), 256, name)


def _gpt2(content: bytes, path: Path) -> Tokens:
    tiktoken = require("tiktoken", "data")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise LabError(f'{path} is not UTF-8 ({error.reason} at byte {error.start}); use tokens = "bytes"') from None
    try:
        encoding = tiktoken.get_encoding("gpt2")
    except Exception as error:  # any error of the HTTP library
        raise LabError(
            "the GPT-2 vocabulary cannot be fetched "
            f'({type(error).__name__}); set TIKTOKEN_CACHE_DIR to a copy, or use tokens = "bytes"'
        ) from None
    return split(np.array(encoding.encode_ordinary(text), dtype=np.uint16), GPT2_VOCABULARY, str(path))


def split(tokens: NDArray[np.integer], vocabulary: int, name: str) -> Tokens:
    """Hold out the last twentieth for validation."""
    cut = len(tokens) - max(1, len(tokens) // 20)
    return Tokens((tokens[:cut],), (tokens[cut:],), vocabulary, name)


def read_shards(data: Shards) -> Tokens:
    """All `*train*.bin` and `*val*.bin` of a folder, in alphabetical order."""
    folder = Path(data.path).expanduser()
    if data.download:
        fetch(folder, data.download)
    parts = {}
    for part in ("train", "val"):
        files = sorted(folder.glob(f"*{part}*.bin"))
        if not files:
            raise LabError(f"data.path: {folder} has no *{part}*.bin; set data.download to fetch FineWeb's")
        parts[part] = tuple(read_shard(file) for file in files)
    return Tokens(parts["train"], parts["val"], GPT2_VOCABULARY, str(folder))


def read_shard(path: Path) -> NDArray[np.uint16]:
    """The tokens of one shard, memory-mapped; validates header and length."""
    size = path.stat().st_size
    if size < HEADER:
        raise LabError(f"{path}: {size} bytes are too few for a shard's header; fetch it again")
    magic, version, count = (int(x) for x in np.fromfile(path, dtype="<i4", count=3))
    if magic != MAGIC:
        raise LabError(f"{path} is not a token shard: it begins with {magic}, not {MAGIC}")
    if version != VERSION:
        raise LabError(f"{path}: shard version {version} is not known, only {VERSION}")
    if size != HEADER + 2 * count:
        raise LabError(
            f"{path}: the header says {count} tokens, the file holds {(size - HEADER) / 2:g}; fetch it again"
        )
    return np.memmap(path, dtype="<u2", mode="r", offset=HEADER)


def fetch(folder: Path, shards: int) -> None:
    """Download the validation shard and this many training shards of FineWeb; existing files are kept."""
    hub = require("huggingface_hub", "data")
    hub.utils.logging.set_verbosity_error()
    names = ["fineweb_val_000000.bin", *(f"fineweb_train_{i:06d}.bin" for i in range(1, shards + 1))]
    new = not folder.exists()
    for name in names:
        if (folder / name).exists():
            continue
        try:
            hub.hf_hub_download(REPOSITORY, name, repo_type="dataset", local_dir=folder)
        except Exception as error:  # any error of the HTTP library
            if new and not any(folder.glob("*.bin")):
                shutil.rmtree(folder, ignore_errors=True)  # metadata of the hub; other files are kept
            raise LabError(f"{name} cannot be fetched from huggingface.co ({type(error).__name__})") from None


class Windows:
    """Disjoint windows of `context` tokens, with the tokens that follow each as targets."""

    def __init__(self, pieces: Sequence[NDArray[np.integer]], context: int, name: str) -> None:
        self.pieces, self.context = pieces, context
        counts = [max(0, len(piece) - 1) // context for piece in pieces]
        self._ends = np.cumsum(counts)
        if not sum(counts):
            held = sum(len(piece) for piece in pieces)
            raise LabError(f"{name}: {held} tokens are too few for one window of {context} and its target")

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> Batch:
        piece = int(np.searchsorted(self._ends, index, side="right"))
        start = (index - (int(self._ends[piece - 1]) if piece else 0)) * self.context
        window = self.pieces[piece][start : start + self.context + 1].astype(np.int64)
        return window[:-1], window[1:]

    def gather(self, indices: Sequence[int] | NDArray[np.int64]) -> Batch:
        """Inputs and targets of several windows, stacked."""
        pairs = [self[int(index)] for index in indices]
        return np.stack([pair[0] for pair in pairs]), np.stack([pair[1] for pair in pairs])

    def batch(self, seed: int, step: int, size: int) -> Batch:
        return self.gather(examples(seed, step, size, len(self)))
