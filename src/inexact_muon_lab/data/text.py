"""Text as bytes or as GPT-2 tokens, cut into windows for language models."""

from __future__ import annotations

import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from inexact_muon_lab.data.order import examples
from inexact_muon_lab.errors import LabError
from inexact_muon_lab.extras import require
from inexact_muon_lab.spec.spec import Text

Batch = tuple[NDArray[np.int64], NDArray[np.int64]]
GPT2_VOCABULARY = 50304
"""50257 tokens, rounded up to a multiple of 128."""


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
