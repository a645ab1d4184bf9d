"""Token shards such as FineWeb's: a header of 256 int32, then uint16 tokens; memory-mapped.

The header contains 20240520, the version 1 and the number of tokens.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from inexact_muon_lab.data.text import GPT2_VOCABULARY, Tokens
from inexact_muon_lab.errors import LabError
from inexact_muon_lab.extras import require
from inexact_muon_lab.spec.spec import Shards

MAGIC, VERSION, HEADER = 20240520, 1, 1024
REPOSITORY = "kjj0/fineweb10B-gpt2"
"""Data set on huggingface.co: FineWeb's 10B sample in GPT-2 tokens."""


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
