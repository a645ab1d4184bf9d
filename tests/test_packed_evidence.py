"""Packed evidence says what its store says, notices a flipped bit, refuses strangers, merges and goes on."""

from __future__ import annotations

import bz2
import hashlib
import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from rich.console import Console

from inexact_muon_lab import cli, data
from inexact_muon_lab.errors import LabError
from inexact_muon_lab.report.claims import judge
from inexact_muon_lab.report.load import load
from inexact_muon_lab.spec.spec import Digits, Nothing, Stdlib
from inexact_muon_lab.spec.study import Decide, StudyRuns
from inexact_muon_lab.store import pack, packing, store
from inexact_muon_lab.sweep.listing import records
from lab_stores import IDS, PLAN, flip, half, listed, run_all
from report_cases import LOSSES, Case, bowl, grid, ladder, write

QUIET = Console(quiet=True)
LONG = 400


def packed(folder: Path, *sources: Path) -> Path:
    file = folder / "evidence.pack"
    packing.pack_all(sources, file, QUIET)
    return file


def long_ladder() -> list[Case]:
    """Curves longer than a page draws, one of which ends in a loss that is not finite."""
    cases = ladder(seeds=2)
    for case in cases:
        case.records = [("train", step, {"loss": 2.0 + 1 / step, "lr": 0.1}) for step in range(1, LONG)]
        case.records += [("time", step, {"forward": 0.1 * step}) for step in range(1, LONG)]
        case.records += [("validation", step, {"loss": 2.5 + 1 / step}) for step in range(1, LONG)]
    cases[0].records.append(("train", LONG, {"loss": None}))
    return cases


@pytest.mark.parametrize("several", [False, True])
def test_the_same_page_as_its_store(tmp_path: Path, several: bool) -> None:
    build = pytest.importorskip("inexact_muon_lab.report.build", reason="the page needs the extra `lab`").build
    folder = tmp_path / "runs"
    write(folder / "gpt", [*ladder(seeds=3), Case({"problem": {"name": "cnn"}, "seed": 9}, state="waiting")], "gpt")
    if several:
        write(folder / "heat", grid(bowl({2: (0.05, 0.8), 5: (0.1, 0.8)}, {2: 1.0, 5: 1.0}), 2), "heat")
        write(folder / "long", long_ladder(), "long")
    file = packed(tmp_path, folder)
    pages = []
    for place, name in ((folder if several else folder / "gpt", "a"), (file, "b")):
        out = tmp_path / name / "runs"
        built = build(place, out=out, pictures=False)
        text = built.page.read_text().replace(str(place), str(file))
        pages.append(text.replace("runs: all studies", "evidence.pack: all studies"))
        assert built.problems == []
    assert pages[0] == pages[1]
    assert sorted(p.name for p in (tmp_path / "a/runs/report").iterdir()) == sorted(
        p.name for p in (tmp_path / "b/runs/report").iterdir()
    )
    for path in (tmp_path / "a/runs/report").iterdir():
        assert path.read_bytes() == (tmp_path / "b/runs/report" / path.name).read_bytes()


def test_lists_and_shows_like_its_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "store"
    run_all(folder)
    file = packed(tmp_path, folder)
    assert records(file, *store.read(file)) == records(folder, *store.read(folder))
    assert listed(file) == listed(folder)
    said = []
    for place in (folder, file):
        monkeypatch.setattr("sys.argv", ["inexact-muon", "show", str(place), IDS[0]])
        cli.main()
        said.append([line for line in capsys.readouterr().out.splitlines() if str(folder) not in line])
    assert said[0] == said[1]
    monkeypatch.setattr("sys.argv", ["inexact-muon", "pack", str(folder), str(tmp_path / "again.pack")])
    cli.main()
    assert (tmp_path / "again.pack").read_bytes() == file.read_bytes()


def test_500_runs_are_small(tmp_path: Path) -> None:
    """Curves as of the tiny byte GPT with telemetry: 25 losses, 10 validations, 11 LMO errors of 12 matrices."""
    rng = np.random.default_rng(0)
    layers = [f"blocks.{i}.{name}.weight" for i in range(3) for name in ("qkv", "out", "up", "down")]

    def numbers(size: int) -> list[float]:
        return (2.0 + 0.1 * rng.standard_normal(size)).tolist()

    runs = []
    for case in ladder(seeds=100, losses=LOSSES):
        curves = [{"kind": "train", "step": 10 * k, "loss": v, "lr": 0.1} for k, v in enumerate(numbers(25))]
        curves += [{"kind": "validation", "step": 25 * k, "loss": v} for k, v in enumerate(numbers(10))]
        for k in range(11):
            parts = {part: dict(zip(layers, numbers(12), strict=True)) for part in ("delta", "gap", "overshoot")}
            curves.append({"kind": "lmo", "step": 25 * k, "sum": numbers(1)[0], **parts})
        outcome = store.Outcome(state="finished", step=250, result=case.result, seconds={"forward": numbers(1)[0]})
        runs.append(pack.PackedRun(id=case.spec.id, spec=case.spec, state="finished", outcome=outcome, curves=curves))
    assert len(runs) == 500
    file = tmp_path / "many.pack"
    pack.write(file, [pack.PackedStore(about={"name": "many"}, runs=runs)])
    print(f"500 runs: {file.stat().st_size / 1e6:.2f} MB")
    assert file.stat().st_size < 2e6
    assert pack.read(file)[0].runs == runs


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    file = packed(tmp_path, write(tmp_path / "gpt", ladder({1: 2.0, 5: 1.5}, seeds=1), "gpt"))
    whole = file.read_bytes()
    for bit in np.random.default_rng(0).integers(0, 8 * len(whole), 200).tolist():
        file.write_bytes(whole)
        flip(file, bit)
        with pytest.raises(LabError, match=r"damaged|not packed evidence|has version"):
            pack._read.__wrapped__(file, 0, 0)
    for cut in (0, 10, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:cut])
        with pytest.raises(LabError, match=r"damaged|not packed evidence"):
            store.read(file)


def sealed(body: bytes, version: bytes = b"1") -> bytes:
    return b"inexact-muon evidence %s %s\n" % (version, hashlib.sha256(body).hexdigest().encode()) + body


def content(file: Path) -> dict[str, list[dict[str, list[dict[str, object]]]]]:
    return json.loads(bz2.decompress(file.read_bytes().partition(b"\n")[2]))


STRANGERS = {
    "text": b"hello\nworld",
    "nothing": b"",
    "a zip": b"PK\x03\x04" + bytes(100),
    "a later version": sealed(bz2.compress(b"{}"), b"2"),
    "not compressed": sealed(b'{"stores": []}'),
    "not JSON": sealed(bz2.compress(b"\x80\x04pickle")),
    "other JSON": sealed(bz2.compress(b'{"runs": []}')),
    "deep JSON": sealed(bz2.compress(b"[" * 100_000)),
    "cut off inside": sealed(bz2.compress(b'{"stores": []}')[:-8]),
}


@pytest.mark.parametrize("kind", STRANGERS)
def test_strangers_are_refused_in_one_sentence(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "strange.pack"
    file.write_bytes(STRANGERS[kind])
    for command in ("list", "report"):
        monkeypatch.setattr("sys.argv", ["inexact-muon", command, str(file)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        assert stop.value.code == 2
        said = capsys.readouterr().err
        assert str(file) in said
        assert said.count("\n") == 1
    assert file.read_bytes() == STRANGERS[kind]
    monkeypatch.setattr("sys.argv", ["inexact-muon", "pack", str(write(tmp_path / "s", ladder(seeds=1))), str(file)])
    with pytest.raises(SystemExit):  # never over somebody's other file
        cli.main()
    assert file.read_bytes() == STRANGERS[kind]


def test_a_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack, "LARGEST", 1 << 20)
    file = tmp_path / "bomb.pack"
    file.write_bytes(sealed(bz2.compress(b'{"stores": []' + b" " * (1 << 21) + b"}")))
    with pytest.raises(LabError, match=r"more than 1\.0 MB"):
        pack.read(file)


def test_a_run_under_another_ones_id_is_refused(tmp_path: Path) -> None:
    file = packed(tmp_path, write(tmp_path / "gpt", ladder({1: 2.0, 5: 1.5}, seeds=1), "gpt"))
    plain = content(file)
    for change in ({"id": "0" * 12}, {"state": "waiting"}, {"curves": [{"kind": 3, "step": "x"}]}):
        changed = json.loads(json.dumps(plain))
        changed["stores"][0]["runs"][0] |= change
        file.write_bytes(sealed(bz2.compress(json.dumps(changed).encode())))
        with pytest.raises(LabError, match="of another kind"):
            store.read(file)


def test_a_bad_file_among_good_ones_is_left_out_and_named(tmp_path: Path) -> None:
    place = tmp_path / "all"
    place.mkdir()
    packing.pack_all([write(tmp_path / "a", ladder(seeds=2), "gpt")], place / "a.pack", QUIET)
    (place / "b.pack").write_bytes(b"hello")
    found = load(place)
    assert [study.name for study in found.studies] == ["gpt"]
    assert any("b.pack is not packed evidence" in sentence for sentence in found.tables.problems)


def test_several_are_merged_by_study(tmp_path: Path) -> None:
    cases = ladder(seeds=4)
    early, late = ([c for c in cases if (c.fields["seed"] < 2) is first] for first in (True, False))
    place = tmp_path / "all"
    place.mkdir()
    for name, part in (("early", early), ("late", late + early[:2])):
        packing.pack_all([write(tmp_path / name, part, "gpt")], place / f"{name}.pack", QUIET)
    write(tmp_path / "whole", cases, "gpt")
    (found,) = load(place).studies
    assert {run.id for run in found.runs} == {case.spec.id for case in cases}
    assert len(found.runs) == len(cases)
    wanted = [j.finding for j in judge(load(tmp_path / "whole"))]
    assert [j.finding.interval for j in judge(load(place))] == [finding.interval for finding in wanted]
    packing.pack_all([place], tmp_path / "both.pack", QUIET)
    assert {run.id for run in store.runs(tmp_path / "both.pack")} == {case.spec.id for case in cases}


def test_one_run_with_two_ends_is_said(tmp_path: Path) -> None:
    a, b = ladder(seeds=2), ladder(seeds=2)
    b[0].result = {"loss": 9.0}
    for name, cases in (("a", a), ("b", b)):
        packing.pack_all([write(tmp_path / name, cases, "gpt")], tmp_path / f"{name}.pack", QUIET)
    with pytest.raises(LabError, match="ended in two ways"):
        packing.pack_all([tmp_path / "a.pack", tmp_path / "b.pack"], tmp_path / "c.pack", QUIET)
    assert any("ended otherwise" in sentence for sentence in load(tmp_path).tables.problems)


def test_pairs_of_another_environment_are_refused(tmp_path: Path) -> None:
    """One arm of seed 1 was trained on other data: the pair is left out, and the page says so."""
    place = write(tmp_path / "gpt", ladder({1: 2.0, 5: 1.5}, seeds=4), "gpt")
    for run in store.runs(place):
        folder = store.run_folder(place, run.id)
        old = store.read_outcome(folder)
        assert old is not None
        other = run.spec.seed == 1 and "steps=5" in str(run.spec.optimizer)
        environment = {"data": "b" * 64 if other else "a" * 64, "torch": "2.13.0"}
        store.write_outcome(folder, msgspec.structs.replace(old, environment=environment))
    (place / store.INDEX).unlink()
    opened = store.Store(
        place,
        StudyRuns(
            name="gpt", title="", figure="", varied=(), runs=tuple(c.spec for c in ladder({1: 2.0, 5: 1.5}, seeds=4))
        ),
    )
    opened.close()
    found = load(place)
    assert any("1 of the runs of seed 1 do not compare" in s and "data bbbb" in s for s in found.tables.problems)
    gain = next(j.finding for j in judge(found) if j.claim.id == "lower-loss")
    assert gain.interval.n == 3


def test_a_sweep_goes_on_from_a_file(tmp_path: Path) -> None:
    first = tmp_path / "first"
    part = msgspec.structs.replace(PLAN, runs=PLAN.runs[:2])
    run_all(first, part)
    file = packed(tmp_path, first)
    second = tmp_path / "second"
    assert packing.import_packed([file], second, msgspec.structs.replace(PLAN, runs=PLAN.runs[1:])) == 2
    half(second, PLAN.runs[2])
    assert run_all(second, PLAN) == []
    assert {run.id for run in store.runs(second)} == set(IDS)
    attempts = {run.id: run.attempts for run in store.runs(second)}
    assert attempts == {IDS[0]: 0, IDS[1]: 0, IDS[2]: 1}
    third = tmp_path / "third"
    run_all(third, PLAN)
    assert listed(second) == listed(third)
    assert packing.import_packed([file], second, PLAN) == 0
    with pytest.raises(LabError, match="no run of the study 'other'"):
        packing.import_packed([file], tmp_path / "x", msgspec.structs.replace(PLAN, name="other", runs=PLAN.runs[2:]))


def test_runs_of_another_study_are_taken_if_the_plan_has_them(tmp_path: Path) -> None:
    run_all(tmp_path / "first", PLAN)
    other = msgspec.structs.replace(PLAN, name="other", runs=PLAN.runs[1:])
    assert packing.import_packed([packed(tmp_path, tmp_path / "first")], tmp_path / "second", other) == 2
    assert {run.id for run in store.runs(tmp_path / "second")} == set(IDS[1:])


FIRST = Decide(family=("time",), width={"time": 0.1}, pilot=(0, 1), most=4)
LATER = msgspec.structs.replace(FIRST, most=8)


@pytest.mark.parametrize(("then", "changed"), [(FIRST, False), (LATER, True), (None, False)])
def test_a_changed_declaration_is_marked_through_files(tmp_path: Path, then: Decide | None, changed: bool) -> None:
    run_all(tmp_path / "first", msgspec.structs.replace(PLAN, decide=FIRST, runs=PLAN.runs[:2]))
    file = packed(tmp_path, tmp_path / "first")
    packing.import_packed([file], tmp_path / "second", msgspec.structs.replace(PLAN, decide=then))
    again = tmp_path / "again.pack"
    packing.pack_all([tmp_path / "second"], again, QUIET)
    for place in (tmp_path / "second", again):
        found = load(place).studies[0]
        assert (found.declared, found.redeclared) == (then or FIRST, changed)
    both = tmp_path / "both.pack"
    packing.pack_all([file, again], both, QUIET)
    assert load(both).studies[0].redeclared == changed
    third = msgspec.structs.replace(PLAN, decide=then)
    packing.import_packed([again], tmp_path / "third", third)
    assert load(tmp_path / "third").studies[0].redeclared == changed, "the mark stays"


def test_nothing_to_pack_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="no store to pack"):
        packing.pack_all([tmp_path], tmp_path / "x.pack", QUIET)
    with pytest.raises(LabError, match="is a folder"):
        packing.pack_all([tmp_path], tmp_path, QUIET)


def test_a_study_of_several_is_named_after_a_slash(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write(tmp_path / "runs" / name, ladder(seeds=1), name)
    file = packed(tmp_path, tmp_path / "runs")
    one = tmp_path / "runs/one"
    assert records(file / "one", *store.read(file / "one")) == records(one, *store.read(one))
    with pytest.raises(LabError, match=r"name one: .*evidence\.pack/one, .*evidence\.pack/two"):
        store.read(file)
    with pytest.raises(LabError, match=r"holds no study 'tow'.*two"):
        store.read(file / "tow")


def test_outcomes_hold_what_their_numbers_depend_on(tmp_path: Path) -> None:
    run_all(tmp_path)
    for run in store.runs(tmp_path):
        assert run.outcome is not None
        assert run.outcome.environment.keys() >= {
            "python",
            "torch",
            "numpy",
            "inexact_muon",
            "cpu",
            "machine",
            "device",
        }
        assert "data" not in run.outcome.environment
    sums = {data.fingerprint(section) for section in (Stdlib(), Digits())}
    assert {len(found) for found in sums} == {64}
    assert len(sums) == 2
    assert data.fingerprint(Nothing()) == ""


def test_large_data_are_hashed_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = np.arange(100_000, dtype=np.uint16)

    def hashed(array: np.ndarray) -> str:
        monkeypatch.setattr(data, "_load", lambda section, stamp: data.Tokens((array,), (array[:10],), 256, "x"))
        return data._fingerprint.__wrapped__(Nothing(), ())

    whole = hashed(tokens)
    monkeypatch.setattr(data, "WHOLE", 64 * 64)
    pieces = hashed(tokens)
    changed, longer = tokens.copy(), np.append(tokens, tokens[-1:])
    changed[0] += 1
    assert len({whole, pieces, hashed(changed), hashed(longer)}) == 4
