"""Text as bytes, or as GPT-2 tokens."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import numpy as np

from inexact_muon_lab.data.tokens import Tokens, split
from inexact_muon_lab.errors import LabError
from inexact_muon_lab.extras import require
from inexact_muon_lab.spec.spec import Text

GPT2_VOCABULARY = 50304
"""50257 tokens, rounded up to a multiple of 128."""


def read_stdlib() -> Tokens:
    """The modules of this Python's standard library, in alphabetical order; about 4 MB of code and prose."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return _bytes(b"".join(file.read_bytes() for file in files), "stdlib")


def read_text(data: Text) -> Tokens:
    """A file, or the files below a folder in alphabetical order, without hidden ones."""
    path = Path(data.path).expanduser()
    if not path.exists():
        raise LabError(f"data.path: there is no {path}; give a text file or a folder of them")
    files = (
        sorted(p for p in path.rglob("*") if p.is_file() and not p.name.startswith(".")) if path.is_dir() else [path]
    )
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
