"""Tensors in a folder of torch.distributed.checkpoint, read without executing code from it.

torch unpickles the folder's `.metadata`, and every entry that is not a tensor, with Python's unpickler, which executes
code from them. Here the metadata is parsed as data, entries that are not tensors are not opened, and each piece of a
tensor is opened with weights_only.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path, PurePosixPath
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor

from inexact_muon_lab.checkpoints.pickles import Constructed, NameNotAllowed, read_pickle

METADATA = "torch.distributed.checkpoint.metadata"
FILES = "torch.distributed.checkpoint.filesystem"
TENSOR = "TensorStorageMetadata"

NAMES = {
    *((METADATA, name) for name in ("Metadata", "MetadataIndex", "StorageMeta", "BytesStorageMetadata", TENSOR)),
    *((METADATA, name) for name in ("TensorProperties", "ChunkStorageMetadata", "_MEM_FORMAT_ENCODING")),
    (FILES, "_StorageInfo"),
    *(("torch", name) for name, value in vars(torch).items() if isinstance(value, torch.dtype)),
    *(("torch", "Size"), ("torch.serialization", "_get_layout")),
    *((module, name) for module in ("pathlib", "pathlib._local") for name in ("PosixPath", "WindowsPath")),
}
"""All names that torch uses in `.metadata`."""


@dataclass(frozen=True)
class Piece:
    """A box of a tensor, with its file and position."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: Path
    start: int
    length: int


def read_folder(folder: Path, select: Callable[[str], bool]) -> dict[str, Tensor]:
    """The tensors whose names satisfy `select`, assembled; raises ValueError if a part is missing or damaged, or if
    `.metadata` names anything but the classes of torch's metadata."""
    if not (folder / ".metadata").is_file():
        raise ValueError(f"{folder} is a folder without .metadata, so not one of torch.distributed.checkpoint")
    try:
        metadata = read_pickle(_inside(folder, ".metadata").read_bytes(), NAMES)
    except NameNotAllowed as error:
        name = "".join(c if c.isprintable() else "?" for c in str(error)[:200])
        raise ValueError(
            f"{folder}/.metadata names {name}, which torch never does there: nothing was executed"
        ) from None
    except ValueError:
        raise ValueError(f"{folder}/.metadata cannot be read as torch's metadata: it may be truncated") from None
    try:
        layouts = {name: (size, pieces) for name, size, pieces in _layouts(folder, metadata, select)}
        return {name: _assembled(size, pieces) for name, (size, pieces) in layouts.items()}
    except (KeyError, AttributeError, TypeError, IndexError):
        raise ValueError(f"{folder}/.metadata is not what torch writes: it may be damaged") from None
    except (OSError, ValueError, RuntimeError, EOFError, UnpicklingError, zipfile.BadZipFile):
        raise ValueError(f"{folder} cannot be read: parts of it may be missing") from None


def _layouts(
    folder: Path, metadata: Any, select: Callable[[str], bool]
) -> Iterator[tuple[str, tuple[int, ...], list[Piece]]]:
    """(name, size, pieces) of every selected tensor; all pieces together are not longer than their files."""
    storage = {}
    for key, info in metadata.state["storage_data"].items():
        offset = key.state.get("offset")
        storage[key.state["fqn"], None if offset is None else _size(offset)] = info.state
    files: dict[Path, int] = {}
    used = 0
    for name, entry in metadata.state["state_dict_metadata"].items():
        if type(entry).__name__ != TENSOR or not isinstance(name, str) or not select(name):
            continue
        pieces = []
        for chunk in entry.state["chunks"]:
            offsets, sizes = _size(chunk.state["offsets"]), _size(chunk.state["sizes"])
            info = storage[name, offsets] if (name, offsets) in storage else storage[name, None]
            if info.get("transform_descriptors"):
                raise ValueError("stored through an extension of torch")
            file = _inside(folder, info["relative_path"])
            files.setdefault(file, file.stat().st_size)
            pieces.append(Piece(offsets, sizes, file, _count(info["offset"]), _count(info["length"])))
            used += max(1, pieces[-1].length)
            if used > sum(files.values()):  # at each piece: a small file may name the same one millions of times
                raise ValueError("pieces overlap, or are longer than their files")
        yield name, _size(entry.state["size"]), pieces


def _assembled(size: tuple[int, ...], pieces: list[Piece]) -> Tensor:
    """The whole tensor; its pieces must cover every entry."""
    if prod(size) > sum(prod(piece.sizes) for piece in pieces):  # before allocating it
        raise ValueError("a piece is missing")
    parts = [(piece, _load(piece)) for piece in pieces]
    dtype = parts[0][1].dtype
    whole, covered = torch.empty(size, dtype=dtype), torch.zeros(size, dtype=torch.bool)
    for piece, part in parts:
        box = tuple(slice(o, o + s) for o, s in zip(piece.offsets, piece.sizes, strict=True))
        if part.dtype != dtype or whole[box].shape != part.shape:
            raise ValueError("pieces differ")
        whole[box], covered[box] = part, True
    if not bool(covered.all()):
        raise ValueError("a piece is missing")
    return whole


def _load(piece: Piece) -> Tensor:
    with piece.file.open("rb") as file:
        file.seek(piece.start)
        content = file.read(piece.length)
    check_stored(io.BytesIO(content))
    tensor = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    if not isinstance(tensor, Tensor) or tensor.layout != torch.strided or tuple(tensor.shape) != piece.sizes:
        raise ValueError("not the piece that was announced")
    if tensor.nbytes > min(piece.length, tensor.untyped_storage().nbytes()):  # an expanded tensor has fewer entries
        raise ValueError("a piece is larger than its part of the file")
    return tensor


def check_stored(archive: Path | io.BytesIO) -> None:
    """Raise if an archive of torch.save has entries that are larger than the file: torch does not compress them."""
    with zipfile.ZipFile(archive) as opened:
        entries = opened.infolist()
    if any(e.compress_type != zipfile.ZIP_STORED or e.file_size > e.compress_size for e in entries):
        raise ValueError("its entries are compressed, which torch.save never does")


def _inside(folder: Path, relative: Any) -> Path:
    """A regular file of the folder, not by a link that leaves it."""
    path = folder / (inner := PurePosixPath(relative))
    outside = inner.is_absolute() or ".." in inner.parts or folder.resolve() not in path.resolve().parents
    if outside or not path.is_file():
        raise ValueError("not a file of the folder")
    return path


def _size(size: Constructed) -> tuple[int, ...]:
    """The numbers of a torch.Size."""
    (numbers,) = size.arguments
    return tuple(_count(n) for n in numbers)


def _count(value: Any) -> int:
    if not isinstance(value, int) or value < 0:
        raise TypeError("a count is a whole number")
    return value
