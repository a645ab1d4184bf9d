"""Specs, settings and command lines of any kind end with a result or one sentence, never with a traceback."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from commands import said
from fuzzing import TALLY, fuzz
from inexact_muon_lab import cli
from inexact_muon_lab.cli import statements
from inexact_muon_lab.errors import LabError
from inexact_muon_lab.spec import spec as specs
from inexact_muon_lab.spec import study
from inexact_muon_lab.spec.decode import decode
from inexact_muon_lab.sweep import execute
from inexact_muon_lab.theory import BOUNDS
from lab_stores import run_all

NUMBERS = st.one_of(
    st.integers(-(10**30), 10**30),
    st.floats(),
    st.sampled_from([0, 1, -1, 2, 1e-320, 1e-200, 1e200, 1e308, 5e-324, 10**400, 100_000_000, 0.1, 0.5, 0.95]),
)
TEXTS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        ["[/b]", "[bold]", ":smile:", "\udcff", "-" * 50, "..", ".", "", " ", "=", "[", "[]", "{", "a.b.c"]
    ),
)
SCALARS = st.one_of(NUMBERS, TEXTS, st.booleans(), st.none())
VALUES = st.recursive(
    SCALARS, lambda inside: st.lists(inside, max_size=3) | st.dictionaries(TEXTS, inside, max_size=3), max_leaves=6
)
FIELDS = st.sampled_from(
    [
        *("problem", "problem.name", "problem.width", "problem.widths", "problem.arguments", "problem.arguments.x"),
        *("problem.target", "data", "data.name", "data.path", "optimizer", "optimizer.name", "optimizer.lr", "seed"),
        *("optimizer.polar", "optimizer.betas", "schedule.cooldown", "telemetry.every", "steps", "batch", "accumulate"),
        *("precision", "device", "nothing", "optimizer.nothing", "", ".", "..", "a.b", "problem..name", "seed.x"),
    ]
)
NAMES = st.sampled_from(["cnn", "matrix", "nanogpt", "custom", "muon", "scion", "sgd", "digits", "none", "stdlib"])


def fine(*words: str) -> str:
    """The output of a command that ends with a result, a sentence, or the usage."""
    TALLY["commands"] += 1
    code, out, err = said(*words)
    assert code in (0, 1, 2), (code, err)
    assert "Traceback" not in out + err
    if code == 2 and err.startswith("inexact-muon: "):
        assert err.count("\n") >= 1
    return out + err


# specs ----------------------------------------------------------------------------------------------------------------


@fuzz(150)
@given(st.dictionaries(st.one_of(FIELDS, TEXTS), st.one_of(VALUES, NAMES), max_size=5))
def test_a_spec_is_read_or_refused_by_a_sentence(fields: dict[str, Any]) -> None:
    TALLY["specs"] += 1
    raw: dict[str, Any] = {"problem": {"name": "matrix"}}
    try:
        made = decode(specs.overlaid(raw, fields), specs.RunSpec, "run.toml")
    except ValueError:
        return
    assert specs.from_json(specs.canonical(made)) == made
    assert specs.from_json(specs.canonical(made)).id == made.id


@fuzz(100)
@given(st.lists(st.tuples(st.one_of(FIELDS, TEXTS), st.one_of(VALUES.map(repr), TEXTS, NUMBERS.map(str))), max_size=4))
def test_settings_make_a_plan_or_a_sentence(pairs: list[tuple[str, str]]) -> None:
    TALLY["studies"] += 1
    one = study.Study(name="s", base={"problem": {"name": "matrix"}}, seeds=(0, 1))
    try:
        made = study.plan(one, "s.toml", study.read_changes(f"{field}={value}" for field, value in pairs))
    except ValueError:
        return
    assert len({spec.id for spec in made.runs}) == len(made.runs) > 0
    for spec in made.runs:
        with contextlib.suppress(LabError, ValueError, OSError):
            execute.check(spec) if not isinstance(spec.problem, specs.Custom) else None
        for field in made.varied:
            study.field_of(spec, field)


# commands -------------------------------------------------------------------------------------------------------------


@fuzz(60)
@given(st.sampled_from(sorted(BOUNDS)), st.data())
def test_theory_at_any_values(name: str, data: st.DataObject) -> None:
    parameters = statements.parameters(BOUNDS[name])
    pairs = data.draw(
        st.dictionaries(st.sampled_from([*parameters, "x"]), st.one_of(NUMBERS.map(str), TEXTS), max_size=4)
    )
    fine("theory", name, *(word for key, value in pairs.items() for word in ("--set", f"{key}={value}")))


PLANNED = {
    "--gpus": st.one_of(st.integers(-2, 10**9), st.sampled_from([1, 8, 64, 100_000_000])),
    "--tp": st.integers(-1, 64),
    "--link": st.floats(),
    "--flops": st.floats(),
    "--efficiency": st.floats(),
    "--memory": st.floats(),
    "--tokens": st.integers(-1, 10**30),
    "--copies": st.integers(-1, 10**30),
    "--layout": st.sampled_from(["fsdp", "ddp", "hsdp"]),
    "--strategies": st.one_of(TEXTS, st.sampled_from(["gram-reduced", "block-periodic:0", "low-rank:-1", "top-k:nan"])),
    "--oracle": st.one_of(TEXTS, st.sampled_from(["polar-express:3", "zolotarev:2", "zolotarev:9", "jordan:5"])),
}


@fuzz(12)
@given(st.data())
def test_plan_at_any_values(data: st.DataObject) -> None:
    # One strategy: a valid case records a step in a process of its own, which takes seconds.
    chosen = {*data.draw(st.lists(st.sampled_from(sorted(PLANNED)), max_size=3, unique=True)), "--gpus", "--strategies"}
    words = [f"{name}={data.draw(PLANNED[name])}" for name in sorted(chosen)]
    fine("plan", data.draw(st.sampled_from(["gpt2-124m", "nothing", "[/b]"])), *words)


@pytest.fixture(scope="module")
def place() -> Any:
    """A folder with a store in it; the current one while commands run."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as name:
        run_all(Path(name) / "[store]")
        os.chdir(name)
        yield Path(name)
        os.chdir(before)


WORDS = st.one_of(
    st.sampled_from(
        [*cli.COMMANDS, "--set", "--json", "--out", "--help", "-h", "--workers", "--engine", "--", "-", "="]
    ),
    st.sampled_from(
        ["[store]", "[store]/runs", "nowhere", "--set=a=1", "seed=1", "steps=[1,2]", "--pick", "--version"]
    ),
    st.sampled_from(["polar-express:5", "polar-express:-1", "--shape", "3x4", "0x0", "--spectrum", "gaussian", "--lr"]),
    TEXTS.filter(lambda text: "\0" not in text),
    NUMBERS.map(str),
)
QUIET = ("theory", "list", "show", "transfer", "delta", "plan", "run", "sweep")
"""Commands that take no minutes, whatever they are given; a run or a sweep would need a file."""


@fuzz(60)
@example("list", ["[store]"])
@example("show", ["[store]", ""])
@example("run", ["[/b].toml"])
@given(st.sampled_from(QUIET), st.lists(WORDS, max_size=5))
def test_any_words(place: Path, command: str, words: list[str]) -> None:
    fine(command, *words)
