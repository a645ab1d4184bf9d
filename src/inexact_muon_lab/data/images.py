"""Small labelled images: scikit-learn's digits, CIFAR-10 in its binary version."""

from __future__ import annotations

import hashlib
import io
import tarfile
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from inexact_muon_lab.data.order import examples
from inexact_muon_lab.errors import LabError
from inexact_muon_lab.extras import require
from inexact_muon_lab.spec.spec import Cifar10

Pixels = NDArray[np.uint8]
Batch = tuple[NDArray[np.float32], NDArray[np.int64]]

PER_FILE, RECORD = 10_000, 1 + 3 * 32 * 32
TRAINING = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
ARCHIVE = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
ARCHIVE_MD5 = "c32a1d4ab5d03f1284b67883e8d87530"


@dataclass(frozen=True)
class Images:
    """uint8 pixels (n, channels, side, side) and labels below `classes`; batches are normalised per channel."""

    train: tuple[Pixels, NDArray[np.int64]]
    test: tuple[Pixels, NDArray[np.int64]]
    classes: int
    mean: NDArray[np.float32]
    deviation: NDArray[np.float32]

    def batch(self, seed: int, step: int, size: int) -> Batch:
        return self._take(self.train, examples(seed, step, size, len(self.train[1])))

    def test_batch(self, index: int, size: int) -> Batch:
        """The index-th batch of `size` test images, cyclically."""
        return self._take(self.test, (index * size + np.arange(size)) % len(self.test[1]))

    def _take(self, part: tuple[Pixels, NDArray[np.int64]], indices: NDArray[np.int64]) -> Batch:
        return (part[0][indices].astype(np.float32) - self.mean) / self.deviation, part[1][indices]


def make(train: tuple[Pixels, NDArray[np.int64]], test: tuple[Pixels, NDArray[np.int64]], classes: int) -> Images:
    """Images normalised by the training images' mean and deviation per channel."""
    mean = train[0].mean(axis=(0, 2, 3), dtype=np.float64, keepdims=True)[0]
    square = np.square(train[0], dtype=np.float32).mean(axis=(0, 2, 3), dtype=np.float64, keepdims=True)[0]
    deviation = np.sqrt(np.maximum(square - mean**2, 1e-12))
    return Images(train, test, classes, mean.astype(np.float32), deviation.astype(np.float32))


def read_digits() -> Images:
    """1437 training and 360 test images; every fifth is a test image."""
    loaded = require("sklearn.datasets", "lab").load_digits()
    pixels, labels = loaded.images.astype(np.uint8)[:, None], loaded.target.astype(np.int64)
    test = np.arange(len(labels)) % 5 == 4
    return make((pixels[~test], labels[~test]), (pixels[test], labels[test]), 10)


def read_cifar10(data: Cifar10) -> Images:
    """The five training files and the test file."""
    folder = Path(data.path).expanduser()
    if data.download and not (folder / TRAINING[0]).exists():
        fetch(folder)
    parts = [read_batch(folder / name) for name in TRAINING]
    pixels, labels = (np.concatenate(part) for part in zip(*parts, strict=True))
    if data.images > len(labels):
        raise LabError(f"data.images: CIFAR-10 has {len(labels)} training images, not {data.images}")
    count = data.images or len(labels)
    return make((pixels[:count], labels[:count]), read_batch(folder / "test_batch.bin"), 10)


def read_batch(path: Path) -> tuple[Pixels, NDArray[np.int64]]:
    """One binary file of 10,000 records of a label and 3 x 32 x 32 pixels."""
    if not path.exists():
        raise LabError(f"data.path: there is no {path}; set data.download = true to fetch CIFAR-10's binary version")
    size = path.stat().st_size
    if size != PER_FILE * RECORD:
        raise LabError(f"{path} has {size} bytes, a file of CIFAR-10 has {PER_FILE * RECORD}; fetch it again")
    records = np.fromfile(path, dtype=np.uint8).reshape(PER_FILE, RECORD)
    labels = records[:, 0].astype(np.int64)
    if labels.max() > 9:
        raise LabError(f"{path} is damaged: a label is {labels.max()}, CIFAR-10's go to 9; fetch it again")
    return records[:, 1:].reshape(PER_FILE, 3, 32, 32), labels


def fetch(folder: Path) -> None:
    """Download CIFAR-10 (170 MB), verify it, and unpack its .bin files into the folder."""
    try:
        with urllib.request.urlopen(ARCHIVE, timeout=60) as answer:
            content = answer.read()
    except OSError as error:
        raise LabError(f"CIFAR-10 cannot be fetched from {ARCHIVE}: {error}; set data.path to a copy") from None
    unpack(content, folder, ARCHIVE_MD5)


def unpack(content: bytes, folder: Path, md5: str) -> None:
    """The .bin files of an archive with this checksum."""
    digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if digest != md5:
        raise LabError(f"the archive of CIFAR-10 has the checksum {digest}, not {md5}: fetch it again")
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        for member in archive.getmembers():
            source = archive.extractfile(member) if member.name.endswith(".bin") else None
            if source is not None:
                (folder / Path(member.name).name).write_bytes(source.read())
