"""Data: a batch depends on seed and step alone, an epoch sees everything once, and damaged files are refused."""

from __future__ import annotations

import hashlib
import io
import itertools
import tarfile
import urllib.error
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inexact_muon_lab import data
from inexact_muon_lab.data import images, order, text
from inexact_muon_lab.data.text import Windows
from inexact_muon_lab.errors import LabError
from inexact_muon_lab.extras import require
from inexact_muon_lab.spec.spec import Cifar10, Digits, Nothing, Shards, Stdlib, Text

# order ----------------------------------------------------------------------------------------------------------------


@given(st.integers(0, 9), st.integers(1, 40), st.integers(1, 17), st.integers(1, 4))
def test_an_epoch_sees_every_example_once(seed: int, size: int, batch: int, epochs: int) -> None:
    steps = -(-epochs * size // batch)
    seen = np.concatenate([order.examples(seed, step, batch, size) for step in range(steps)])
    for epoch in range(epochs):
        assert sorted(seen[epoch * size : (epoch + 1) * size]) == list(range(size))


def test_a_batch_is_the_same_whenever_it_is_asked() -> None:
    forwards = [order.examples(3, step, 7, 50) for step in range(20)]
    order.permutation.cache_clear()
    backwards = [order.examples(3, step, 7, 50) for step in reversed(range(20))][::-1]
    assert all((a == b).all() for a, b in zip(forwards, backwards, strict=True))


def test_seeds_and_epochs_differ() -> None:
    orders = {tuple(order.permutation(seed, epoch, 30)) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9


def test_the_order_is_the_same_tomorrow() -> None:
    assert order.examples(0, 0, 6, 100).tolist() == ORDER


ORDER = [82, 36, 20, 5, 93, 16]

# tokens ---------------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 40), min_size=1, max_size=4), st.integers(1, 9))
def test_windows_are_disjoint_and_targets_follow(lengths: list[int], context: int) -> None:
    starts = np.cumsum([0, *lengths])
    pieces = [np.arange(a, b, dtype=np.uint16) for a, b in itertools.pairwise(starts)]
    count = sum(max(0, n - 1) // context for n in lengths)
    if not count:
        with pytest.raises(LabError, match="too few for one window"):
            Windows(pieces, context, "x")
        return
    windows = Windows(pieces, context, "x")
    assert len(windows) == count
    inputs, targets = windows.gather(range(count))
    assert inputs.shape == (count, context)
    assert (targets == inputs + 1).all()
    assert len(set(inputs.ravel())) == inputs.size


def test_the_standard_library_is_text() -> None:
    found = data.load(Stdlib())
    assert found is data.load(Stdlib())
    assert isinstance(found, data.Tokens)
    assert found.vocabulary == 256
    assert sum(map(len, found.train)) > 19 * sum(map(len, found.validation)) - 20 > 1_000_000
    assert b"import" in found.train[0].tobytes()


def test_a_file_and_a_folder(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_bytes(b"world" * 100)
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "c.txt").write_bytes(b"!" * 100)
    (tmp_path / "a.txt").write_bytes(b"hello" * 100)
    (tmp_path / ".hidden").write_bytes(b"no")
    found = text.read_text(Text(path=str(tmp_path)))
    whole = found.train[0].tobytes() + found.validation[0].tobytes()
    assert whole == b"hello" * 100 + b"world" * 100 + b"!" * 100
    assert len(found.validation[0]) == 55
    alone = text.read_text(Text(path=str(tmp_path / "a.txt")))
    assert alone.train[0].tobytes() + alone.validation[0].tobytes() == b"hello" * 100


def test_no_text(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"there is no .*missing"):
        text.read_text(Text(path=str(tmp_path / "missing")))
    with pytest.raises(LabError, match="holds no text"):
        text.read_text(Text(path=str(tmp_path)))


class Encoding:
    def encode_ordinary(self, text: str) -> list[int]:
        return [ord(character) for character in text]


def test_gpt2_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiktoken = pytest.importorskip("tiktoken")
    (tmp_path / "t").write_text("abc" * 50)
    monkeypatch.setattr(tiktoken, "get_encoding", lambda name: Encoding())
    found = text.read_text(Text(path=str(tmp_path / "t"), tokens="gpt2"))
    assert found.vocabulary == 50304
    assert found.train[0].dtype == np.uint16
    assert found.train[0][:3].tolist() == [97, 98, 99]
    (tmp_path / "t").write_bytes(b"ab\xff")
    with pytest.raises(LabError, match=r'not UTF-8 \(invalid start byte at byte 2\); use tokens = "bytes"'):
        text.read_text(Text(path=str(tmp_path / "t"), tokens="gpt2"))


def test_gpt2_vocabulary_without_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiktoken = pytest.importorskip("tiktoken")
    (tmp_path / "t").write_text("abc")

    def offline(name: str) -> None:
        raise ConnectionError

    monkeypatch.setattr(tiktoken, "get_encoding", offline)
    with pytest.raises(LabError, match=r"cannot be fetched \(ConnectionError\); set TIKTOKEN_CACHE_DIR"):
        text.read_text(Text(path=str(tmp_path / "t"), tokens="gpt2"))


def write_shard(
    path: Path, tokens: np.ndarray, magic: int = 20240520, version: int = 1, count: int | None = None
) -> None:
    header = np.zeros(256, dtype="<i4")
    header[:3] = magic, version, len(tokens) if count is None else count
    path.write_bytes(header.tobytes() + tokens.astype("<u2").tobytes())


def test_shards_are_mapped_in_order(tmp_path: Path) -> None:
    for name, first in (("fineweb_train_000002.bin", 60000), ("fineweb_train_000001.bin", 0), ("fineweb_val_0.bin", 7)):
        write_shard(tmp_path / name, first + np.arange(5000))
    found = data.load(Shards(path=str(tmp_path)))
    assert isinstance(found, data.Tokens)
    assert all(isinstance(piece, np.memmap) for piece in (*found.train, *found.validation))
    assert [int(piece[0]) for piece in found.train] == [0, 60000]
    assert found.vocabulary == 50304


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"magic": 20240521}, "is not a token shard: it begins with 20240521, not 20240520"),
        ({"version": 2}, "shard version 2 is not known, only 1"),
        ({"count": 101}, "the header says 101 tokens, the file holds 100; fetch it again"),
    ],
)
def test_a_wrong_shard_is_refused(tmp_path: Path, change: dict[str, int], sentence: str) -> None:
    write_shard(tmp_path / "a_train.bin", np.arange(100), **change)
    with pytest.raises(LabError, match=sentence):
        text.read_shard(tmp_path / "a_train.bin")


def test_a_short_or_missing_shard_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"has no \*train\*.bin; set data.download"):
        text.read_shards(Shards(path=str(tmp_path)))
    (tmp_path / "a_train.bin").write_bytes(b"short")
    with pytest.raises(LabError, match="5 bytes are too few for a shard's header"):
        text.read_shard(tmp_path / "a_train.bin")


def test_shards_without_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")

    def offline(*args: object, local_dir: Path, **options: object) -> None:
        (local_dir / ".cache").mkdir(parents=True)
        raise ConnectionError

    monkeypatch.setattr(hub, "hf_hub_download", offline)
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "mine.txt").write_text("mine")
    for name in ("old", "new"):
        with pytest.raises(LabError, match=r"fineweb_val_000000.bin cannot be fetched from huggingface.co"):
            text.read_shards(Shards(path=str(tmp_path / name), download=1))
    assert not (tmp_path / "new").exists()
    assert (tmp_path / "old" / "mine.txt").read_text() == "mine"


# images ---------------------------------------------------------------------------------------------------------------


def test_digits() -> None:
    pytest.importorskip("sklearn")
    found = data.load(Digits())
    assert isinstance(found, data.Images)
    assert (found.train[0].shape, found.test[0].shape) == ((1438, 1, 8, 8), (359, 1, 8, 8))
    assert set(found.train[1]) == set(range(10))
    everything, labels = found.batch(0, 0, 1438)
    assert abs(everything.mean()) < 1e-5
    assert abs(everything.std() - 1) < 1e-5
    assert sorted(labels) == sorted(found.train[1])


def write_cifar(folder: Path) -> None:
    rng = np.random.default_rng(0)
    for name in (*images.TRAINING, "test_batch.bin"):
        records = rng.integers(0, 256, (images.PER_FILE, images.RECORD), dtype=np.uint8)
        records[:, 0] %= 10
        records.tofile(folder / name)


def test_cifar_and_its_damage(tmp_path: Path) -> None:
    write_cifar(tmp_path)
    found = images.read_cifar10(Cifar10(path=str(tmp_path), images=12_000))
    assert found.train[0].shape == (12_000, 3, 32, 32)
    assert found.test[0].shape == (10_000, 3, 32, 32)
    raw = np.fromfile(tmp_path / "data_batch_2.bin", dtype=np.uint8)[: images.RECORD]
    assert found.train[1][10_000] == raw[0]
    assert (found.train[0][10_000].ravel() == raw[1:]).all()
    first = found.test_batch(0, 64)
    assert (first[0] == found.test_batch(0, 64)[0]).all()
    assert found.test_batch(156, 64)[1].shape == (64,)

    with pytest.raises(LabError, match="CIFAR-10 has 50000 training images, not 60000"):
        images.read_cifar10(Cifar10(path=str(tmp_path), images=60_000))
    path = tmp_path / "data_batch_3.bin"
    whole = bytearray(path.read_bytes())
    whole[0] = 10
    path.write_bytes(whole)
    with pytest.raises(LabError, match=r"data_batch_3.bin is damaged: a label is 10"):
        images.read_cifar10(Cifar10(path=str(tmp_path)))
    path.write_bytes(whole[:-1])
    with pytest.raises(LabError, match="has 30729999 bytes, a file of CIFAR-10 has 30730000; fetch it again"):
        images.read_cifar10(Cifar10(path=str(tmp_path)))
    path.unlink()
    with pytest.raises(LabError, match=r"there is no .*data_batch_3.bin; set data.download = true"):
        images.read_cifar10(Cifar10(path=str(tmp_path)))


def test_an_archive_is_checked_and_unpacked(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name in ("cifar-10-batches-bin/data_batch_1.bin", "cifar-10-batches-bin/readme.html", "../evil.bin"):
            member = tarfile.TarInfo(name)
            member.size = 3
            archive.addfile(member, io.BytesIO(b"abc"))
    content = buffer.getvalue()
    with pytest.raises(LabError, match="has the checksum"):
        images.unpack(content, tmp_path / "to", images.ARCHIVE_MD5)
    assert not (tmp_path / "to").exists()
    images.unpack(content, tmp_path / "to", hashlib.md5(content).hexdigest())
    assert sorted(p.name for p in (tmp_path / "to").iterdir()) == ["data_batch_1.bin", "evil.bin"]
    assert [p.name for p in tmp_path.iterdir()] == ["to"]


def test_cifar_without_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*args: object, **options: object) -> None:
        raise urllib.error.URLError("no route")

    monkeypatch.setattr("urllib.request.urlopen", offline)
    with pytest.raises(LabError, match=r"CIFAR-10 cannot be fetched .*no route.*; set data.path to a copy"):
        images.read_cifar10(Cifar10(path=str(tmp_path / "new"), download=True))
    assert not (tmp_path / "new").exists()


def test_problems_that_bring_their_own() -> None:
    assert data.load(Nothing()) is None


def test_a_missing_package_says_how_to_install_it() -> None:
    with pytest.raises(LabError, match=r"this needs nonesuch: pip install 'inexact-muon\[data\]'"):
        require("nonesuch.part", "data")
