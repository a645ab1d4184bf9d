"""`delta --checkpoint` on odd but safe files: a table or one sentence, whatever they hold."""

import contextlib
import io
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fuzzing import fuzz
from inexact_muon import cli
from odd_values import mutated, tensors, values
from test_tune_checkpoints import MAKERS, stepped

HONEST = {name: stepped(name)[1].state_dict() for name in MAKERS}


def outcome(path: Path) -> tuple[int, str, str]:
    """Exit code, output and errors of the command."""
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.TextIOWrapper(io.BytesIO(), "utf-8")
    words = ["inexact-muon", "delta", "--checkpoint", str(path)]
    code: Any = 0
    with mock.patch.object(sys, "argv", words), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.main()
        except SystemExit as error:
            code = error.code
    texts = []
    for stream in (out, err):
        stream.seek(0)
        texts.append(stream.read())
    return code, texts[0], texts[1]


def check(value: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "c.pt"
        torch.save(value, path)
        code, out, err = outcome(path)
    if code == 0:
        assert "recommended" in out
        assert "\x1b" not in out
        assert err == ""
    else:
        assert code == 2
        assert err.startswith("inexact-muon: ")
        assert err.count("\n") == 1
        assert "\x1b" not in err


@fuzz(20)
@given(st.data())
def test_honest_files_with_a_few_changes(data: st.DataObject) -> None:
    check(data.draw(mutated(HONEST[data.draw(st.sampled_from(sorted(HONEST)))])))


@fuzz(20)
@given(values())
def test_anything_that_is_safe(value: Any) -> None:
    check(value)


@fuzz(20)
@given(st.dictionaries(st.text(max_size=4).map(lambda s: f"{s}momentum_buffer"), tensors(), max_size=3))
def test_tensors_by_name(value: dict[str, torch.Tensor]) -> None:
    check(value)


def nested(depth: int) -> Any:
    value: Any = {}
    for _ in range(depth):
        value = {"a": value}
    return value


def holding_itself() -> Any:
    value: dict[str, Any] = {}
    value["optimizer"] = value
    return value


def test_nested_too_deeply() -> None:
    check(holding_itself())
    check(nested(300))


@pytest.mark.parametrize("name", MAKERS)
def test_honest_files_are_tables(name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        torch.save(HONEST[name], Path(folder) / "c.pt")
        assert outcome(Path(folder) / "c.pt")[0] == 0
