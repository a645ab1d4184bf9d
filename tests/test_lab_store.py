"""What was stored stays stored: kills, torn lines, full disks, read-only disks, two sweeps at once."""

from __future__ import annotations

import hashlib
import itertools
import os
import random
import resource
import signal
import sqlite3
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from inexact_muon_lab.errors import LabError, LabWarning
from inexact_muon_lab.spec import study
from inexact_muon_lab.store import curves, store
from inexact_muon_lab.store.curves import Curves
from inexact_muon_lab.store.files import Lock, replace
from inexact_muon_lab.store.store import Outcome, Store
from lab_processes import small_disk
from lab_stores import reproducible

PLAN = study.plan(study.Study(name="four", base={"problem": {"name": "nanogpt"}}, seeds=(0, 1, 2, 3)), "four.toml")
IDS = [spec.id for spec in PLAN.runs]
DONE = Outcome(state="finished", step=250, result={"loss": 0.1 + 0.2})


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", "256k") as folder:
        yield folder


def read_only(folder: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", folder], check=True)


# curves ---------------------------------------------------------------------------------------------------------------


def filled(path: Path, steps: int) -> bytes:
    writer = Curves(path)
    for step in range(1, steps + 1):
        writer.append("train", step, {"loss": 1 / step})
    writer.close()
    return path.read_bytes()


def prefix(path: Path, lines: int) -> curves.Mark:
    """The mark of the first so many lines."""
    content = b"".join(path.read_bytes().splitlines(keepends=True)[:lines])
    return curves.Mark(len(content), hashlib.sha256(content).hexdigest())


def test_records_come_back_bit_for_bit(tmp_path: Path) -> None:
    filled(tmp_path / "c", 100)
    assert [r["loss"] for r in curves.read(tmp_path / "c")] == [1 / step for step in range(1, 101)]


def test_not_finite_becomes_null(tmp_path: Path) -> None:
    writer = Curves(tmp_path / "c")
    writer.append("train", 1, {"loss": float("nan"), "size": float("inf")})
    assert curves.read(tmp_path / "c") == [{"kind": "train", "step": 1, "loss": None, "size": None}]


def test_a_file_cut_anywhere_is_a_prefix_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "c"
    whole = filled(path, 6)
    full = curves.read(path)
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        kept = curves.read(path)
        assert kept == full[: len(kept)]
        assert len(kept) == whole[:length].count(b"\n")
        writer = Curves(path, prefix(path, len(kept)))
        for record in full[len(kept) :]:
            writer.append("train", record["step"], {"loss": record["loss"]})
        writer.close()
        assert path.read_bytes() == whole


def test_a_torn_last_line_of_garbage_is_dropped(tmp_path: Path) -> None:
    whole = filled(tmp_path / "c", 3)
    (tmp_path / "c").write_bytes(whole + b"00000000 {}\n")
    assert len(curves.read(tmp_path / "c")) == 3


def test_damage_before_the_end_is_refused(tmp_path: Path) -> None:
    whole = bytearray(filled(tmp_path / "c", 5))
    whole[whole.index(b"\n") + 15] ^= 1
    (tmp_path / "c").write_bytes(whole)
    with pytest.raises(LabError, match=r"c: line 2 is damaged; the same sweep repeats the run"):
        curves.read(tmp_path / "c")


def test_resuming_cuts_what_came_after_the_checkpoint(tmp_path: Path) -> None:
    filled(tmp_path / "c", 9)
    Curves(tmp_path / "c", prefix(tmp_path / "c", 4)).close()
    assert [r["step"] for r in curves.read(tmp_path / "c")] == [1, 2, 3, 4]


def test_times_are_not_results(tmp_path: Path) -> None:
    writer = Curves(tmp_path / "c")
    writer.append("time", 1, {"forward": 0.1})
    writer.append("train", 1, {"loss": 2.0})
    assert [r["kind"] for r in reproducible(tmp_path / "c")] == ["train"]


WRITER = """
import sys
from pathlib import Path
from inexact_muon_lab.store.curves import Curves, mark, read
path = Path(sys.argv[1])
before = path.read_bytes() if path.exists() else b""
path.write_bytes(before[: before.rfind(b"\\n") + 1])
writer = Curves(path, mark(path))
print("go", flush=True)
for step in range(len(read(path)) + 1, 10**9):
    writer.append("train", step, {"loss": 1 / step})
"""


def test_killed_writers_leave_a_valid_prefix(tmp_path: Path) -> None:
    path, rng = tmp_path / "c", random.Random(0)
    before = 0
    for _ in range(8):
        child = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(rng.random() * 0.05)
        child.kill()
        child.communicate()
        found = curves.read(path)
        assert [r["step"] for r in found] == list(range(1, len(found) + 1))
        assert len(found) >= before
        before = len(found)
    assert before > 0


# store ----------------------------------------------------------------------------------------------------------------


def test_a_run_from_waiting_to_finished(tmp_path: Path) -> None:
    opened = Store(tmp_path, PLAN)
    assert [s.id for s in opened.waiting(PLAN)] == IDS
    opened.begin(IDS[1])
    assert [r.state for r in store.runs(tmp_path)] == ["waiting", "running", "waiting", "waiting"]
    opened.end(IDS[1], DONE)
    opened.close()
    found = store.runs(tmp_path)[1]
    assert (found.state, found.attempts, found.outcome) == ("finished", 1, DONE)
    assert found.spec == PLAN.runs[1]
    assert store.about(tmp_path)["varied"] == "seed"


def end(opened: Store, run: str, outcome: Outcome) -> None:
    """Ends a run as `execute` and a sweep do: the file, then the index."""
    opened.run_folder(run).mkdir(exist_ok=True)
    store.write_outcome(opened.run_folder(run), outcome)
    opened.end(run, outcome)


def test_reopening_repeats_nothing_that_ended(tmp_path: Path) -> None:
    opened = Store(tmp_path, PLAN)
    end(opened, IDS[0], DONE)
    end(opened, IDS[1], Outcome(state="diverged", step=3))
    end(opened, IDS[2], Outcome(state="failed", step=4, error="Traceback"))
    opened.begin(IDS[3])
    opened.close()
    again = Store(tmp_path, PLAN)
    assert [s.id for s in again.waiting(PLAN)] == IDS[3:]
    again.retry()
    assert [s.id for s in again.waiting(PLAN)] == IDS[2:]
    again.close()


def test_an_outcome_that_a_killed_sweep_never_saw_is_taken_in(tmp_path: Path) -> None:
    opened = Store(tmp_path, PLAN)
    opened.begin(IDS[2])
    opened.run_folder(IDS[2]).mkdir()
    store.write_outcome(opened.run_folder(IDS[2]), DONE)
    opened.close()
    again = Store(tmp_path, PLAN)
    assert store.find(tmp_path, IDS[2]).outcome == DONE
    again.close()


def test_another_study_is_refused(tmp_path: Path) -> None:
    Store(tmp_path, PLAN).close()
    other = study.plan(study.Study(name="five", base={"problem": {"name": "nanogpt"}}), "five.toml")
    with pytest.raises(LabError, match="holds the study 'four', not 'five'; choose another --out"):
        Store(tmp_path, other)


def test_a_larger_grid_of_the_same_study_adds_runs(tmp_path: Path) -> None:
    opened = Store(tmp_path, PLAN)
    end(opened, IDS[0], DONE)
    opened.close()
    larger = study.plan(study.Study(name="four", base={"problem": {"name": "nanogpt"}}, seeds=(9, 0, 1)), "four.toml")
    again = Store(tmp_path, larger)
    assert [s.seed for s in again.waiting(larger)] == [9, 1]
    again.close()
    assert len(store.runs(tmp_path)) == 5


def test_a_second_sweep_is_refused_until_the_first_ends(tmp_path: Path) -> None:
    first = Store(tmp_path, PLAN)
    with pytest.raises(LabError, match=r"another sweep is running on .*; wait for it, or choose another --out"):
        Store(tmp_path, PLAN)
    assert len(store.runs(tmp_path)) == 4
    first.close()
    Store(tmp_path, PLAN).close()


def test_a_lock_waits_for_its_holder(tmp_path: Path) -> None:
    code = "import sys, time; from pathlib import Path; from inexact_muon_lab.store.files import Lock\n"
    code += "lock = Lock(Path(sys.argv[1]), 'no'); print('go', flush=True); time.sleep(0.3)"
    child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "l")], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    with pytest.raises(LabError, match="taken"):
        Lock(tmp_path / "l", "taken")
    with Lock(tmp_path / "l", "taken", patience=60):
        pass
    child.communicate()


OPEN = """
import sys, time
from pathlib import Path
from inexact_muon_lab.spec import study
from inexact_muon_lab.store import store
plan = study.plan(study.Study(name="four", base={"problem": {"name": "nanogpt"}}, seeds=(0, 1, 2, 3)), "four.toml")
opened = store.Store(Path(sys.argv[1]), plan)
done = store.Outcome(state="finished", step=1, result={"loss": 1.5})
"""
BUSY = """
print("go", flush=True)
while True:
    for spec in plan.runs:
        opened.run_folder(spec.id).mkdir(exist_ok=True)
        opened.begin(spec.id)
        store.write_outcome(opened.run_folder(spec.id), done)
        opened.end(spec.id, done)
        (opened.run_folder(spec.id) / store.OUTCOME).unlink()
        opened.mark_interrupted(spec.id)
"""
ONE_END = """
opened.end(plan.runs[0].id, done)
print("go", flush=True)
time.sleep(600)
"""


def test_a_store_killed_while_writing_opens_again(tmp_path: Path) -> None:
    rng = random.Random(1)
    for _ in range(6):
        child = subprocess.Popen([sys.executable, "-c", OPEN + BUSY, str(tmp_path)], stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(rng.random() * 0.1)
        child.kill()
        child.communicate()
        assert {r.id for r in store.runs(tmp_path)} == set(IDS)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LabWarning)  # it may have been killed between the two
            Store(tmp_path, PLAN).close()
        check = sqlite3.connect(tmp_path / store.INDEX)
        assert check.execute("pragma integrity_check").fetchone() == ("ok",)
        check.close()


def test_not_a_store(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="is not a store"):
        store.runs(tmp_path)
    (tmp_path / store.INDEX).write_bytes(b"nonsense" * 1000)
    with pytest.raises(LabError, match="cannot be read: file is not a database; delete it and run"):
        store.runs(tmp_path)


def test_a_store_of_another_version_is_named(tmp_path: Path) -> None:
    Store(tmp_path, PLAN).close()
    index = sqlite3.connect(tmp_path / store.INDEX)
    index.execute("""update runs set spec = replace(spec, 'nanogpt', 'nanogpt9')""")
    index.commit()
    index.close()
    with pytest.warns(LabWarning, match=rf"{tmp_path}: 4 of 4 runs cannot be read and are left out .*'nanogpt9'"):
        assert store.runs(tmp_path) == []


def test_find_by_prefix(tmp_path: Path) -> None:
    Store(tmp_path, PLAN).close()
    assert store.find(tmp_path, IDS[0][:6]).id == IDS[0]
    with pytest.raises(LabError, match="4 runs begin with ''"):
        store.find(tmp_path, "")
    with pytest.raises(LabError, match="no run begins with 'xyz'"):
        store.find(tmp_path, "xyz")


def test_a_damaged_outcome_is_named(tmp_path: Path) -> None:
    (tmp_path / store.OUTCOME).write_text("{")
    with pytest.raises(LabError, match="is damaged; the same sweep repeats the run"):
        store.read_outcome(tmp_path)


# disks ----------------------------------------------------------------------------------------------------------------


def test_a_full_disk_keeps_the_old_file(disk: Path) -> None:
    replace(disk / "f", b"old")
    with pytest.raises(LabError, match=r"cannot write .*: the disk is full; free some space and start again"):
        replace(disk / "f", bytes(2**20))
    assert (disk / "f").read_bytes() == b"old"
    assert [p.name for p in disk.iterdir()] == ["f"]


def test_a_full_disk_keeps_the_curves(disk: Path) -> None:
    writer = Curves(disk / "c")
    steps = itertools.count(1)
    with pytest.raises(LabError, match="the disk is full"):
        [writer.append("train", step, {"more": "x" * 5000}) for step in steps]
    assert len(curves.read(disk / "c")) == next(steps) - 2 > 10


def test_a_full_disk_keeps_the_store(disk: Path) -> None:
    opened = Store(disk, PLAN)
    end(opened, IDS[0], DONE)
    with pytest.raises(LabError, match="the disk is full"):
        opened.end(IDS[1], Outcome(state="failed", step=1, error="x" * 2**20))
    opened.close()
    assert [r.state for r in store.runs(disk)] == ["finished", "waiting", "waiting", "waiting"]
    again = Store(disk, PLAN)
    again.end(IDS[1], DONE)
    again.close()


def test_a_file_size_limit_is_a_full_disk(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
        with pytest.raises(LabError, match="largest size allowed"):
            replace(tmp_path / "f", bytes(2000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert not list(tmp_path.iterdir())


def test_a_read_only_disk_is_read_but_not_written(disk: Path) -> None:
    opened = Store(disk, PLAN)
    opened.end(IDS[0], DONE)
    opened.close()
    read_only(disk)
    with pytest.raises(LabError, match=r"cannot write .*: it is mounted read-only; choose another --out"):
        Store(disk, PLAN)
    with pytest.raises(LabError, match="read-only"):
        Store(disk / "new", PLAN)
    assert store.runs(disk)[0].outcome == DONE
    assert sorted(os.listdir(disk)) == ["lock", "runs", "store.sqlite"]


def test_what_a_killed_sweep_left_is_read_from_a_read_only_disk(disk: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", OPEN + ONE_END, str(disk)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    child.kill()
    child.communicate()
    read_only(disk)
    assert [r.state for r in store.runs(disk)] == ["finished", "waiting", "waiting", "waiting"]
