"""`delta --checkpoint` on odd but safe files: a table or one sentence, whatever they hold."""

import tempfile
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from commands import said
from fuzzing import TALLY, fuzz
from odd_values import mutated, tensors, values
from test_tune_checkpoints import MAKERS, stepped
from torch_features import HAS_MUON, NO_MUON

HONEST = {name: stepped(name)[1].state_dict() for name in MAKERS if HAS_MUON or not name.startswith("torch")}


def outcome(path: Path) -> tuple[int, str, str]:
    return said("delta", "--checkpoint", str(path))


def check(value: Any) -> None:
    TALLY["files"] += 1
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "c.pt"
        torch.save(value, path)
        code, out, err = outcome(path)
    if code == 0:
        assert "candidates" in out
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
    if name not in HONEST:
        pytest.skip(NO_MUON)
    with tempfile.TemporaryDirectory() as folder:
        torch.save(HONEST[name], Path(folder) / "c.pt")
        assert outcome(Path(folder) / "c.pt")[0] == 0


def of_two_shapes() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.nested.nested_tensor([torch.ones(3, 3), torch.ones(2, 3)])


def broken(change: Any) -> Any:
    value = HONEST["ours"]
    groups = [dict(group) for group in value["param_groups"]]
    state = {key: dict(entry) for key, entry in value["state"].items()}
    result = {"state": state, "param_groups": groups}
    return change(result) or result


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda v: v["param_groups"][0].pop("params") and None, "group 0 of the checkpoint has no list of parameters"),
        (lambda v: v.update(param_groups=["text"]), "group 0 of the checkpoint is not a dict of options"),
        (lambda v: v.update(param_groups=5), "param_groups of the checkpoint must be a list, got int"),
        (lambda v: v["param_groups"][0].update(params=[[0], [1]]), "has no list of parameters"),
        (lambda v: v["param_groups"][0].update(param_names=["a"]), "2 parameters and other param_names"),
        (lambda v: v["param_groups"][0].update(view="split(rows=0)"), "does not fit its view"),
        (
            lambda v: v["state"][0].update(momentum_buffer=torch.eye(3).to_sparse()),
            "sparse, nested, expanded or without data",
        ),
        (lambda v: v["state"][0].update(momentum_buffer=of_two_shapes()), "is sparse, nested"),
        (lambda v: v["state"][0].update(momentum_buffer=torch.ones(1).expand(1 << 20, 1 << 20)), "expanded or"),
        (lambda v: [v["param_groups"][0].pop("ball"), v["param_groups"][0].update(ns_steps=10**30), v][2], "ns_steps"),
    ],
)
def test_what_is_wrong_is_said(change: Any, words: str, tmp_path: Path) -> None:
    torch.save(broken(change), tmp_path / "c.pt")
    code, _, err = outcome(tmp_path / "c.pt")
    assert code == 2
    assert words in err
    assert err.count("\n") == 1


def test_a_momentum_of_the_largest_numbers_is_judged_without_a_warning(tmp_path: Path) -> None:
    large = torch.tensor([[1.0, 1.0, 0.5], [-1.0, 1.0, 0.5]], dtype=torch.float64) * 1.7e308
    torch.save(broken(lambda v: v["state"][0].update(momentum_buffer=large)), tmp_path / "c.pt")
    code, out, err = outcome(tmp_path / "c.pt")
    assert (code, err, "nan" in out) == (0, "", False)


def test_names_of_a_file_do_not_control_the_terminal(tmp_path: Path) -> None:
    torch.save(
        broken(lambda v: v["param_groups"][0].update(param_names=["\x1b[31m[/b]", "b\ud800"])), tmp_path / "c.pt"
    )
    code, out, _ = outcome(tmp_path / "c.pt")
    assert code == 0
    assert "?[31m[/b]" in out
    assert "b?" in out
