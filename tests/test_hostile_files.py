"""Small files from strangers cost little time and memory, stay in their folder, and do not control the terminal."""

from __future__ import annotations

import bz2
import hashlib
import io
import json
import os
import pickle
import resource
import subprocess
import sys
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from inexact_muon._text import printable
from inexact_muon_lab import cli
from inexact_muon_lab.checkpoints.folders import NAMES, read_folder
from inexact_muon_lab.checkpoints.momenta import read
from inexact_muon_lab.checkpoints.pickles import read_pickle
from inexact_muon_lab.errors import LabError
from inexact_muon_lab.report.build import announce, build
from inexact_muon_lab.spec.study import StudyRuns
from inexact_muon_lab.store import pack, store
from inexact_muon_lab.store.curves import Curves
from inexact_muon_lab.terminal import console
from report_cases import ladder, write, write_packed
from test_untrusted_files import folder as folder

LIMIT = 300 << 20
"""Bytes that a command may take beyond what Python and torch take."""
ESC = "\x1b[31m\x07\x9b"


def command(*words: object, **more: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "inexact_muon_lab", *map(str, words)]
    return subprocess.run(line, capture_output=True, text=True, timeout=120, check=False, env=os.environ | more)


def nested(levels: int, key: bool) -> bytes:
    """A pickle of a tuple of twice a tuple of twice ..., as a key of a dict or a set: 5 bytes a level."""
    tuples = b")" + b"".join(b"q" + bytes([k]) + b"h" + bytes([k]) + b"\x86" for k in range(levels))
    return b"\x80\x04" + (b"}" + tuples + b"Ns." if key else b"\x8f(" + tuples + b"\x90.")


@pytest.mark.parametrize("key", [True, False])
def test_small_ones_are_what_they_say(key: bool) -> None:
    """Else the refusal below would show nothing."""
    assert len(pickle.loads(nested(3, key))) == 1


@pytest.mark.parametrize("key", [True, False])
def test_keys_that_take_forever_to_hash_are_refused(key: bool, tmp_path: Path) -> None:
    content = nested(60, key)
    assert len(content) < 600
    with pytest.raises(ValueError, match=r"not a pickle of plain data \(TypeError\)"):
        read_pickle(content, NAMES)
    (tmp_path / ".metadata").write_bytes(content)
    said = command("delta", "--checkpoint", tmp_path)
    assert (said.returncode, said.stderr.count("\n")) == (2, 1)


def metadata_of(folder: Path) -> Any:
    return pickle.loads((folder / ".metadata").read_bytes())


def buffers(metadata: Any) -> list[Any]:
    return [key for key in metadata.storage_data if "momentum_buffer" in key.fqn]


def test_a_name_that_takes_forever_to_hash_is_refused(folder: Path) -> None:
    """Inside of real metadata, where a name is expected."""
    metadata = metadata_of(folder)
    name: Any = ()
    for _ in range(60):
        name = (name, name)
    index = buffers(metadata)[0]
    object.__setattr__(index, "fqn", name)
    type(index).__hash__, old = (lambda self: 0), type(index).__hash__
    try:
        (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    finally:
        type(index).__hash__ = old
    with pytest.raises(ValueError, match="not what torch writes"):
        read_folder(folder, lambda name: "momentum" in name)


def compressed(content: bytes) -> bytes:
    """The same archive with its entries compressed."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
        for entry in old.infolist():
            new.writestr(entry.filename, old.read(entry))
    return out.getvalue()


def saved(value: Any) -> bytes:
    out = io.BytesIO()
    torch.save(value, out)
    return out.getvalue()


SIDE = 13_000
BOMBS = {
    "expanded": lambda: saved(torch.zeros(1).expand(SIDE, SIDE)),
    "compressed": lambda: compressed(saved(torch.zeros(2000, 2000))),
    "not an archive": lambda: saved(torch.zeros(2, 2))[4:],
    "old format": lambda: _legacy(torch.zeros(2, 2)),
}


def _legacy(value: Any) -> bytes:
    out = io.BytesIO()
    torch.save(value, out, _use_new_zipfile_serialization=False)
    return out.getvalue()


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_small_folder_takes_little_memory(bomb: str, folder: Path) -> None:
    metadata, content = metadata_of(folder), BOMBS[bomb]()
    index = buffers(metadata)[0]
    shape = {"expanded": (SIDE, SIDE), "compressed": (2000, 2000)}.get(bomb, (2, 2))
    (folder / "bomb.distcp").write_bytes(content)
    info = metadata.storage_data[index]
    info.relative_path, info.offset, info.length = "bomb.distcp", 0, len(content)
    entry = metadata.state_dict_metadata[index.fqn]
    entry.size = torch.Size(shape)
    entry.chunks[0].sizes, entry.chunks[0].offsets = torch.Size(shape), torch.Size((0, 0))
    object.__setattr__(index, "offset", torch.Size((0, 0)))
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match="cannot be read"):
        read_folder(folder, lambda name: name == index.fqn)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < LIMIT >> 10


def test_a_compressed_file_is_refused(tmp_path: Path) -> None:
    state = {"state": {0: {"momentum_buffer": torch.ones(2000, 2000)}}, "param_groups": [{"params": [0]}]}
    (tmp_path / "small.pt").write_bytes(compressed(saved(state)))
    assert (tmp_path / "small.pt").stat().st_size < 50_000
    said = command("delta", "--checkpoint", tmp_path / "small.pt")
    assert (said.returncode, said.stderr.count("\n")) == (2, 1)


@pytest.mark.parametrize("what", [".metadata", "__0_0.distcp"])
def test_links_that_leave_the_folder_are_not_followed(what: str, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes((folder / what).read_bytes())
    (folder / what).unlink()
    (folder / what).symlink_to(tmp_path / "outside")
    with pytest.raises(ValueError, match="cannot be read"):
        read_folder(folder, lambda name: "momentum" in name)
    (folder / what).unlink()
    (folder / "inside").write_bytes((tmp_path / "outside").read_bytes())
    (folder / what).symlink_to("inside")
    assert read_folder(folder, lambda name: "momentum" in name)
    linked = tmp_path / "linked"
    linked.symlink_to(folder)
    assert read_folder(linked, lambda name: "momentum" in name), "the folder itself may be one"


def test_curves_are_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "curves.jsonl").symlink_to(tmp_path / "mine")
    with pytest.raises(LabError, match="is a link"):
        Curves(tmp_path / "curves.jsonl")
    assert (tmp_path / "mine").read_text() == "mine"


def sealed(text: bytes) -> bytes:
    body = bz2.compress(text)
    return b"inexact-muon evidence 1 %s\n" % hashlib.sha256(body).hexdigest().encode() + body


@pytest.mark.parametrize("inside", [b" ", b"[],"])
def test_a_small_pack_takes_little_memory(inside: bytes, tmp_path: Path) -> None:
    file = tmp_path / "bomb.pack"
    file.write_bytes(sealed(b'{"stores": [' + inside * ((16 << 20) // len(inside)) + b"]}"))
    assert file.stat().st_size < 50_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(LabError, match="unpacks to more than"):
        pack.read(file)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < LIMIT >> 10


@pytest.mark.parametrize("name", ["/etc", "../above", "a/b", "..", ".", f"a{ESC}b"])
def test_the_name_in_a_pack_is_no_path(name: str, tmp_path: Path) -> None:
    write_packed(tmp_path, ladder({1: 2.0, 8: 1.5}, 1))
    (one,) = pack.read(tmp_path / "study.pack")
    pack.write(tmp_path / "bad.pack", [one, pack.PackedStore(about={"name": name}, runs=[])])
    with pytest.raises(LabError, match="is not the name of a study") as caught:
        store.places(tmp_path / "bad.pack")
    assert printable(str(caught.value)) == str(caught.value)


def hostile(tmp_path: Path, custom: bool) -> Path:
    """A store in which every text that anybody may write holds control characters, and one an ampersand."""
    cases = ladder({1: 2.0, 8: 1.5}, 2)
    for case in cases:
        if custom:
            case.fields["problem"] = {"name": "custom", "target": f"a{ESC}:b"}
            case.fields["optimizer"]["polar"] = case.fields["optimizer"]["polar"].replace("frobenius", f"fro{ESC}")
        case.result[f"metric{ESC}"] = 0.5
        case.records = [
            (kind, step, json.loads(json.dumps(values).replace("blocks.0", f"a&b{ESC.encode('unicode_escape').decode()}"
             .replace("\\x", "\\u00")))) for kind, step, values in case.records
        ]  # fmt: skip
    return write(tmp_path / "store", cases, name=f"a&b{ESC}", title=f"t{ESC}")


def test_names_do_not_control_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = hostile(tmp_path, custom=True)
    run = store.runs(place)[0]
    for words in (["list", str(place)], ["show", str(place), run.id], ["report", str(place)], ["list", f"no{ESC}"]):
        monkeypatch.setattr(sys, "argv", ["inexact-muon", *words])
        with suppress(SystemExit):
            cli.main()
        said = capsys.readouterr()
        assert printable(said.out + said.err) == said.out + said.err, words


def test_a_control_character_does_not_abort_the_report(tmp_path: Path) -> None:
    """The renderer of pictures aborts the whole process on one."""
    said = command("report", hostile(tmp_path, custom=False))
    assert said.returncode == 0, said.stderr[-500:]
    assert (tmp_path / "store" / "report.html").exists()


def test_an_ampersand_is_one_in_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    built = build(write(tmp_path, ladder({1: 2.0, 8: 1.5}, 3), name="a&b"), pictures=False)
    announce(built, console(200))
    said = capsys.readouterr().out
    assert "(a&b, Polar Express" in said
    assert "&amp;" not in said
    assert "a&amp;b" in built.page.read_text()
    assert "a&amp;b" in (tmp_path / "report.md").read_text()


def test_no_plan_is_hurt_by_the_name_of_a_file() -> None:
    assert printable("zolotarev(poles=3) ± 1\n\té") == "zolotarev(poles=3) ± 1\n\té"
    assert printable("a\u202eb\x7f\ud800") == "a?b??"
    assert StudyRuns(name="x", title="", figure="", varied=(), runs=()).name == "x"


# streams and widths ---------------------------------------------------------------------------------------------------

WORDS = {"delta": ("polar-express:5", "--shape", "8x8"), "theory": ("list",), "--help": (), "--version": ()}


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&-"])
@pytest.mark.parametrize("name", ["theory", "--help"])  # the first prints tables, and loads no torch
def test_closed_streams_are_no_error(name: str, closed: str) -> None:
    line = f"{sys.executable} -m inexact_muon_lab {' '.join((name, *WORDS[name]))} {closed}"
    found = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=120, check=False)
    assert (found.returncode, found.stderr) == (0, "")


@pytest.mark.parametrize("words", ["--version", "--help", "plan --help", "theory list"])
def test_a_reader_that_leaves_and_a_full_disk_are_one_line_at_most(words: str) -> None:
    ended = []
    for to in ("| true", "> /dev/full"):
        line = f"{sys.executable} -m inexact_muon_lab {words} {to}"
        ended.append(subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=120, check=False))
    assert (ended[0].returncode, ended[0].stderr) == (0, "")
    assert (ended[1].returncode, ended[1].stderr) == (2, "inexact-muon: [Errno 28] No space left on device\n")


@pytest.mark.parametrize("kind", ["pipe.pt", "pipe.safetensors", "/dev/zero"])
def test_a_checkpoint_that_never_ends_is_refused_at_once(kind: str, tmp_path: Path) -> None:
    if kind != "/dev/zero":
        os.mkfifo(tmp_path / kind)
    with pytest.raises(ValueError, match="is a pipe or a device"):
        read(tmp_path / kind)


@pytest.mark.parametrize("columns", ["0", "1", "2", "5", "13", "-5", "abc", "3.5", "9" * 20])
@pytest.mark.parametrize("name", WORDS)
def test_no_width_is_too_narrow(
    name: str, columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr(sys, "argv", ["inexact-muon", name, *WORDS[name]])
    cli.main()
    said = capsys.readouterr()
    assert said.out.strip()
    assert said.err == ""


@pytest.mark.parametrize("columns", ["1", "3", "12"])
@pytest.mark.parametrize("name", ["plan", "run"])
def test_help_at_no_width(
    name: str, columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As at the narrowest width; the layout of less did not end."""
    said = []
    for width in (columns, "20"):
        monkeypatch.setenv("COLUMNS", width)
        monkeypatch.setattr(sys, "argv", ["inexact-muon", name, "--help"])
        with pytest.raises(SystemExit):
            cli.main()
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]


def test_a_shape_of_any_size_is_answered_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["inexact-muon", "delta", "polar-express:5", "--shape", "99999999x99999999"])
    with pytest.raises(SystemExit):
        cli.main()
    assert "sides of at most 16777216" in capsys.readouterr().err


@pytest.mark.parametrize("columns", ["1", "4"])
def test_lists_at_no_width(
    columns: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = write(tmp_path, ladder({1: 2.0, 8: 1.5}, 1))
    run = store.runs(place)[0].id
    monkeypatch.setenv("COLUMNS", columns)
    for words in (["list", str(place)], ["show", str(place), run]):
        monkeypatch.setattr(sys, "argv", ["inexact-muon", *words])
        cli.main()
        assert run in capsys.readouterr().out
