"""A store that is killed, cut, flipped, filled and robbed of files, in any order, ends with the bits of an undisturbed.

A kill is a copy of the folder at the moment of a write: what a process that is gone leaves behind.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fuzzing import TALLY, fuzz
from inexact_muon_lab.errors import LabError
from inexact_muon_lab.store import store
from lab_stores import IDS, PLAN, flip, half, listed, run_all

TRANSIENT = (f"{store.INDEX}-wal", f"{store.INDEX}-shm")
_kept: dict[str, Any] = {}


def undisturbed() -> dict[str, Any]:
    """What the runs come to; trained once."""
    if not _kept:
        with tempfile.TemporaryDirectory() as name:
            assert run_all(Path(name) / "out") == []
            _kept.update(listed(Path(name) / "out")[0])
    return _kept


class Stores(RuleBasedStateMachine):
    """A store and what may happen to it; sweeps go on wherever they can."""

    @initialize()
    def new(self) -> None:
        self.place = Path(tempfile.mkdtemp())
        self.folder = self.place / "out"
        self.images = 0
        TALLY["stores"] += 1

    def teardown(self) -> None:
        if hasattr(self, "place"):
            try:
                self.sweep()
                assert listed(self.folder) == (undisturbed(), [])
            finally:
                shutil.rmtree(self.place)

    def sweep(self) -> None:
        """To the end, following the one advice that a sentence may give."""
        try:
            run_all(self.folder)
        except LabError as error:
            if "delete it and run the same sweep again" not in str(error):
                raise
            for name in (store.INDEX, *TRANSIENT):
                (self.folder / name).unlink(missing_ok=True)
            run_all(self.folder)

    def disturbed(self, at: int, act: Callable[[], None]) -> None:
        """A sweep at whose `at`-th write something happens."""
        left = at
        write, sync = os.write, os.fsync

        def count() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                act()

        def counted_write(*given: Any) -> int:
            count()
            return write(*given)

        def counted_sync(*given: Any) -> None:
            count()
            sync(*given)

        with mock.patch.object(os, "write", counted_write), mock.patch.object(os, "fsync", counted_sync):
            self.sweep()

    @rule(at=st.integers(1, 60))
    def kill(self, at: int) -> None:
        """The store goes on from what was there at a write."""
        image = self.place / f"image{self.images}"
        self.images += 1
        self.disturbed(at, lambda: shutil.copytree(self.folder, image) and None)
        if image.exists():
            TALLY["kills"] += 1
            shutil.rmtree(self.folder)
            image.rename(self.folder)

    @rule(at=st.integers(1, 60))
    def fill(self, at: int) -> None:
        """The disk is full at a write, and has room again for the next sweep."""

        def full() -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        try:
            self.disturbed(at, full)
        except LabError as error:
            if "the disk is full; free some space and start again" not in str(error):
                raise

    @rule(run=st.integers(0, len(IDS) - 1), steps=st.integers(1, 5))
    def stop(self, run: int, steps: int) -> None:
        """A run that waits is stopped half-way, as by Ctrl-C."""
        place = store.run_folder(self.folder, IDS[run])
        if not place.exists():
            half(self.folder, PLAN.runs[run], steps)

    @rule(data=st.data(), bit=st.integers(0, 2**40))
    def flip(self, data: st.DataObject, bit: int) -> None:
        path = self.choose(data)
        if path is not None:
            TALLY["flipped bits"] += 1
            flip(path, bit % (8 * path.stat().st_size))

    @rule(data=st.data(), share=st.floats(0, 1))
    def cut(self, data: st.DataObject, share: float) -> None:
        path = self.choose(data)
        if path is not None:
            os.truncate(path, int(share * path.stat().st_size))

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        path = self.choose(data, folders=True)
        if path is not None and path.is_dir():
            shutil.rmtree(path)
        elif path is not None:
            path.unlink()

    @rule()
    def finish(self) -> None:
        self.sweep()
        assert listed(self.folder) == (undisturbed(), [])

    @invariant()
    def what_is_listed_is_right_or_noticed(self) -> None:
        if not hasattr(self, "folder") or not (self.folder / store.INDEX).exists():
            return
        try:
            shown, _ = listed(self.folder)
        except LabError:
            return
        for run, entry in shown.items():
            if entry[1] is not None:
                assert entry == undisturbed()[run]

    def choose(self, data: st.DataObject, folders: bool = False) -> Path | None:
        """A file with something in it, or the folder of a run."""
        found = [p for p in self.folder.rglob("*") if (p.is_file() and p.stat().st_size) or (folders and p.is_dir())]
        return data.draw(st.sampled_from(sorted(found))) if found else None


TestStores = Stores.TestCase
TestStores.settings = fuzz(10, stateful_step_count=8)
