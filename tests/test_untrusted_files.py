"""Nothing that a checkpoint holds is run: folders of torch.distributed.checkpoint whose pickles call something."""

import io
import os
import pickle
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict

import ranks
from inexact_muon import Muon
from inexact_muon_lab import cli
from inexact_muon_lab.checkpoints.momenta import read
from test_tune_checkpoints import buffers, stepped

METADATA = "torch.distributed.checkpoint.metadata"
MARK = "was_run"


class Call:
    """Unpickles to a call."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.parts = (function, arguments)

    def __reduce__(self) -> Any:
        return self.parts


def named(module: str, name: str, argument: str) -> bytes:
    """A pickle that calls module.name(argument), written by hand since pickle refuses dotted names of this kind."""
    texts = [b"\x8c" + bytes([len(t)]) + t.encode() for t in (module, name, argument)]
    return b"\x80\x04" + texts[0] + texts[1] + b"\x93" + texts[2] + b"\x85R."


def touching(mark: Path) -> str:
    return f"open({str(mark)!r}, 'w').close()"


ATTACKS: dict[str, Callable[[Path], bytes]] = {
    "os.system": lambda mark: pickle.dumps(Call(os.system, f"touch {mark}")),
    "eval": lambda mark: pickle.dumps(Call(eval, touching(mark))),
    "exec, protocol 2": lambda mark: pickle.dumps(Call(exec, touching(mark)), protocol=2),
    "open": lambda mark: pickle.dumps(Call(open, str(mark), "w")),
    "getattr of an import": lambda mark: (
        b"cbuiltins\ngetattr\n(cbuiltins\n__import__\n(S'os'\ntRS'system'\ntR(S'touch " + bytes(mark) + b"'\ntR."
    ),
    "a module that torch's imports": lambda mark: named(METADATA, "os.system", f"touch {mark}"),
    "dotted": lambda mark: named("torch", "serialization.os.system", f"touch {mark}"),
    "dotted from an allowed class": lambda mark: named(METADATA, "Metadata.__init__.__globals__.get", "os"),
    "torch runs it": lambda mark: named("torch.utils.collect_env", "run", f"touch {mark}"),
    "torch.load": lambda mark: pickle.dumps(Call(torch.load, str(mark.with_suffix(".pt")), None, None)),
    "old opcode INST": lambda mark: f"(S'touch {mark}'\nios\nsystem\n.".encode(),
    "old opcode OBJ": lambda mark: f"(cos\nsystem\nS'touch {mark}'\no.".encode(),
    "text": lambda mark: f"cos\nsystem\n(S'touch {mark}'\ntR.".encode(),
    "extension": lambda mark: b"\x80\x02\x82\x01.",
    "persistent": lambda mark: b"\x80\x02X\x01\x00\x00\x00aQ.",
}
HARMLESS = ("dotted from an allowed class", "torch.load", "extension", "persistent", "open")
"""Attacks that need more than one call to do harm, or another file."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return written(tmp_path / "dcp", stepped("ours"))


def written(path: Path, made: tuple[nn.Module, Any], **more: Any) -> Path:
    weights, state = get_state_dict(*made)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that nothing is distributed here
        checkpoint.save({"model": weights, "optim": state, **more}, checkpoint_id=path)
    return path


def refused(path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """The sentence that the command says."""
    monkeypatch.setattr(sys, "argv", ["inexact-muon", "delta", "--checkpoint", str(path)])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


@pytest.mark.parametrize("name", ATTACKS)
def test_the_attacks_are_alive(name: str, tmp_path: Path) -> None:
    """Python's own unpickler runs them, else the tests below would show nothing."""
    if name in HARMLESS:
        pytest.skip("does nothing by itself")
    pickle.loads(ATTACKS[name](tmp_path / MARK))
    assert (tmp_path / MARK).exists()


@pytest.mark.parametrize("name", ATTACKS)
def test_metadata_is_never_run(
    name: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / ".metadata").write_bytes(ATTACKS[name](tmp_path / MARK))
    assert "dcp/.metadata" in refused(folder, capsys, monkeypatch)
    assert not (tmp_path / MARK).exists()


@pytest.mark.parametrize("where", ["planner_data", "storage_meta", "version", "chunk", "key"])
def test_nor_a_call_inside_of_real_metadata(
    where: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata, call = pickle.loads((folder / ".metadata").read_bytes()), Call(eval, touching(tmp_path / MARK))
    if where == "chunk":
        next(iter(metadata.state_dict_metadata.values())).chunks.append(call)
    elif where == "key":
        metadata.storage_data[call] = None
    else:
        setattr(metadata, where, call)
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    said = refused(folder, capsys, monkeypatch)
    assert "names builtins.eval" in said
    assert "nothing was executed" in said
    assert not (tmp_path / MARK).exists()


@pytest.mark.parametrize("entry", ["momentum_buffer", "state.0.weight.momentum_buffer", "state.0.weight.other"])
def test_entries_that_are_no_tensors_are_not_opened(entry: str, tmp_path: Path) -> None:
    """torch unpickles them; ours reads the tensors beside them."""
    made = stepped("ours")
    folder = written(tmp_path / "dcp", made, extra={entry: Call(eval, touching(tmp_path / MARK))})
    found = read(folder)
    assert not (tmp_path / MARK).exists()
    assert len(found) == 2


def test_a_piece_is_opened_with_weights_only(folder: Path, tmp_path: Path) -> None:
    """The bytes of a momentum buffer replaced by a pickle that calls."""
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    stream = io.BytesIO()
    torch.save(Call(eval, touching(tmp_path / MARK)), stream)
    (folder / "evil.distcp").write_bytes(stream.getvalue())
    for key, info in metadata.storage_data.items():
        if "momentum_buffer" in key.fqn:
            info.relative_path, info.offset, info.length = "evil.distcp", 0, len(stream.getvalue())
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(ValueError, match="cannot be read"):
        read(folder)
    assert not (tmp_path / MARK).exists()


def momentum_entries(metadata: Any) -> list[Any]:
    return [entry for name, entry in metadata.state_dict_metadata.items() if "momentum_buffer" in name]


def outside(metadata: Any, folder: Path) -> None:
    (folder / "__0_0.distcp").rename(folder.parent / "other.distcp")
    for info in metadata.storage_data.values():
        info.relative_path = "../other.distcp"


def absolute(metadata: Any, folder: Path) -> None:
    for info in metadata.storage_data.values():
        info.relative_path = str(folder / "__0_0.distcp")


def huge(metadata: Any, folder: Path) -> None:
    for entry in momentum_entries(metadata):
        entry.size = torch.Size((1 << 20, 1 << 20))


def huge_pieces(metadata: Any, folder: Path) -> None:
    for entry in momentum_entries(metadata):
        entry.size = entry.chunks[0].sizes = torch.Size((1 << 20, 1 << 20))


def repeated(metadata: Any, folder: Path) -> None:
    for entry in momentum_entries(metadata):
        entry.chunks = entry.chunks * 100


def a_hole(metadata: Any, folder: Path) -> None:
    for entry in momentum_entries(metadata):
        entry.size = torch.Size((2 * entry.size[0], entry.size[1]))
        entry.chunks = entry.chunks * 2


def negative(metadata: Any, folder: Path) -> None:
    for info in metadata.storage_data.values():
        info.offset = -1


def no_storage(metadata: Any, folder: Path) -> None:
    metadata.storage_data = None


def a_number(metadata: Any, folder: Path) -> None:
    metadata.state_dict_metadata = 5


@pytest.mark.parametrize(
    "damage", [outside, absolute, huge, huge_pieces, repeated, a_hole, negative, no_storage, a_number]
)
def test_metadata_that_lies_is_refused(
    damage: Callable[[Any, Path], None],
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    damage(metadata, folder)
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    assert "dcp" in refused(folder, capsys, monkeypatch)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_protocol_that_torch_may_write(protocol: int, folder: Path) -> None:
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    (folder / ".metadata").write_bytes(pickle.dumps(metadata, protocol=protocol))
    assert len(read(folder)) == 2


def test_the_unpickler_is_not_used_at_all(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by us nor by torch, which opens the file once more when it loads."""

    def fail(*_: Any, **__: Any) -> Any:
        raise AssertionError("pickle was used")

    monkeypatch.setattr(pickle, "load", fail)
    monkeypatch.setattr(pickle, "loads", fail)
    monkeypatch.setattr(pickle, "Unpickler", fail)
    assert len(read(folder)) == 2


def _save(rank: int, world: int, path: str) -> list[torch.Tensor]:
    """A checkpoint of weights that both ranks hold a part of."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(10, 17, bias=False), nn.Linear(17, 16, bias=False))
    fully_shard(net, mesh=init_device_mesh("cpu", (world,)))
    optimizer = Muon(net.named_parameters(), polar="polar-express:4")
    net(torch.randn(5, 10)).square().sum().backward()
    optimizer.step()
    weights, state = get_state_dict(net, optimizer)
    checkpoint.save({"model": weights, "optim": state}, checkpoint_id=path)
    return [buffer.full_tensor() for buffer in buffers(optimizer)]


@pytest.mark.slow
def test_a_folder_of_two_ranks(tmp_path: Path) -> None:
    expected, _ = ranks.on_ranks(_save, 2, str(tmp_path / "dcp"))
    found = {m.name: m.matrix for m in read(tmp_path / "dcp")}
    assert len(list((tmp_path / "dcp").glob("*.distcp"))) == 2
    for name, buffer in zip(("0.weight", "1.weight"), expected, strict=True):
        assert torch.equal(found[name], buffer)


def test_it_is_said_in_the_help(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["inexact-muon", "delta", "--help"])
    with pytest.raises(SystemExit):
        cli.main()
    assert "no code in them is executed" in " ".join(capsys.readouterr().out.replace("│", " ").split())
