"""A run's files are its own: swapped folders, and data or code that change on the way, are noticed."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs

from inexact_muon_lab import data
from inexact_muon_lab.spec import study
from inexact_muon_lab.spec.spec import RunSpec, Text
from inexact_muon_lab.store import pack, packing, store
from inexact_muon_lab.sweep.commands import run_file
from inexact_muon_lab.sweep.execute import execute
from inexact_muon_lab.train import checkpoint
from lab_cases import run_spec
from lab_stores import IDS, PLAN, half, run_all
from test_packed_evidence import packed

PROBLEM = """
import torch
from torch import nn
from inexact_muon_lab.problems import Task
{extra}

def build(seed, batch):
    def examples(step):
        x = torch.randn(batch, 4, generator=torch.Generator().manual_seed(1000 * seed + step))
        return x, {scale} * x.sum(1, keepdim=True)
    return Task(nn.Linear(4, 1), examples, lambda model, b: nn.functional.mse_loss(model(b[0]), b[1]))
"""


def swap(one: Path, two: Path) -> None:
    aside = one.with_name("aside")
    one.rename(aside)
    two.rename(one)
    aside.rename(two)


def losses(folder: Path) -> dict[str, Any]:
    return {run.id: run.outcome.result["loss"] for run in store.runs(folder) if run.outcome}


def plain(outcome: store.Outcome) -> store.Outcome:
    """As earlier versions wrote it."""
    return structs.replace(outcome, run="")


@pytest.mark.parametrize("earlier", [False, True])
def test_swapped_folders_do_not_exchange_results(earlier: bool, tmp_path: Path) -> None:
    run_all(tmp_path)
    if earlier:
        opened = store.Store(tmp_path, PLAN)
        for run in store.runs(tmp_path):
            assert run.outcome is not None
            store.write_outcome(store.run_folder(tmp_path, run.id), plain(run.outcome))
            opened.end(run.id, plain(run.outcome))
        opened.close()
    before = losses(tmp_path)
    assert len(set(before.values())) == 3
    swap(*(store.run_folder(tmp_path, run) for run in IDS[:2]))
    said = run_all(tmp_path)
    assert losses(tmp_path) == before
    assert sum(f"of run {IDS[1]}" in line or f"of run {IDS[0]}" in line for line in said) == 2
    assert run_all(tmp_path) == []


def test_a_swap_before_the_index_knew_is_noticed_too(tmp_path: Path) -> None:
    run_all(tmp_path)
    before = losses(tmp_path)
    for file in tmp_path.glob("store.sqlite*"):
        file.unlink()
    swap(*(store.run_folder(tmp_path, run) for run in IDS[:2]))
    run_all(tmp_path)
    assert losses(tmp_path) == before


def test_outcomes_of_another_run_are_refused_in_a_pack(tmp_path: Path) -> None:
    run_all(tmp_path / "store")
    (one,) = pack.read(packed(tmp_path, tmp_path / "store"))
    first, second, third = one.runs
    assert first.outcome is not None
    assert first.outcome.run == first.id
    exchanged = [structs.replace(first, outcome=second.outcome), structs.replace(second, outcome=first.outcome), third]
    pack.write(tmp_path / "bad.pack", [structs.replace(one, runs=exchanged)])
    with pytest.raises(ValueError, match="does not fit its spec or its outcome"):
        pack.read(tmp_path / "bad.pack")
    older = [structs.replace(run, outcome=plain(run.outcome)) for run in one.runs if run.outcome]
    pack.write(tmp_path / "old.pack", [structs.replace(one, runs=older)])
    assert packing.import_packed([tmp_path / "old.pack"], tmp_path / "again", PLAN) == 3
    assert losses(tmp_path / "again") == losses(tmp_path / "store")


def test_the_checkpoint_of_another_run_is_not_resumed(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    run_all(whole)
    half(tmp_path / "cut", PLAN.runs[0])
    half(tmp_path / "cut", PLAN.runs[1])
    swap(*(store.run_folder(tmp_path / "cut", run) for run in IDS[:2]))
    said = run_all(tmp_path / "cut")
    assert losses(tmp_path / "cut") == losses(whole)
    assert sum("is that of run" in line for line in said) == 2


def stopped(spec: RunSpec, folder: Path, steps: int = 5) -> None:
    left = iter(range(steps, -1, -1))
    assert execute(spec, folder, stopping=lambda: next(left) == 1) is None


def resumed(spec: RunSpec, folder: Path) -> tuple[store.Outcome, list[str]]:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        outcome = execute(spec, folder)
    assert outcome is not None
    return outcome, [str(one.message) for one in seen]


def text(path: Path, word: str) -> RunSpec:
    path.write_bytes((word * 2000).encode())
    return run_spec({"data": {"name": "text", "path": str(path)}})


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., RunSpec]]:
    """Writes the file of a custom problem; each test has a module of its own name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    name = f"problem_{abs(hash(str(tmp_path)))}"

    def write(scale: str = "1.0", extra: str = "") -> RunSpec:
        (tmp_path / f"{name}.py").write_text(PROBLEM.format(scale=scale, extra=extra))
        return run_spec({"problem": {"name": "custom", "target": f"{name}:build"}, "optimizer": {"name": "adamw"}})

    yield write
    sys.modules.pop(name, None)


def test_text_that_changes_between_stop_and_resume_is_noticed(tmp_path: Path) -> None:
    spec = text(tmp_path / "text", "one two three")
    stopped(spec, tmp_path / "run")
    text(tmp_path / "text", "other words ")
    outcome, said = resumed(spec, tmp_path / "run")
    assert any("other data; the run starts again" in line for line in said)
    assert outcome.environment["data"] == data.fingerprint(spec.data)
    fresh, _ = resumed(spec, tmp_path / "fresh")
    assert fresh.result == outcome.result


def test_code_that_changes_between_stop_and_resume_is_noticed(tmp_path: Path, module: Callable[..., RunSpec]) -> None:
    spec = module("1.0")
    stopped(spec, tmp_path / "run")
    module("2.0")
    outcome, said = resumed(spec, tmp_path / "run")
    assert any("other code; the run starts again" in line for line in said)
    fresh, quiet = resumed(spec, tmp_path / "fresh")
    assert fresh.result == outcome.result
    assert quiet == []
    module("1.0")
    assert resumed(spec, tmp_path / "first")[0].result != outcome.result


def test_a_module_beside_it_is_part_of_its_code(tmp_path: Path, module: Callable[..., RunSpec]) -> None:
    (tmp_path / "scale_of_problem.py").write_text("SCALE = 1.0\n")
    spec = module("SCALE", "from scale_of_problem import SCALE")
    stopped(spec, tmp_path / "run")
    (tmp_path / "scale_of_problem.py").write_text("SCALE = 2.0\n")
    _, said = resumed(spec, tmp_path / "run")
    assert any("other code" in line for line in said)


IMPORTS = {
    "beside": ("scale_beside", "from scale_beside import SCALE"),
    "folder without __init__": ("scales/of_folder", "from scales.of_folder import SCALE"),
    "of another module": ("scale_inner", "import scale_outer\nSCALE = scale_outer.SCALE"),
    "with a star": ("scale_beside", "from scale_beside import *"),
    "by name": ("scale_beside", "import importlib\nSCALE = importlib.import_module('scale_beside').SCALE"),
    "if it is there": (
        "scale_beside",
        "try:\n    from nowhere import S\nexcept ImportError:\n    from scale_beside import SCALE",
    ),
}
"""How a module comes to a constant -> (the file it is in, lines of the module)."""


@pytest.mark.parametrize("how", IMPORTS)
def test_all_that_a_problem_imports_is_its_code(how: str, tmp_path: Path, module: Callable[..., RunSpec]) -> None:
    file, lines = IMPORTS[how]
    path = tmp_path / f"{file}.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text("SCALE = 1.0\n")
    (tmp_path / "scale_outer.py").write_text("def late():\n    import json\nfrom scale_inner import SCALE\n")
    try:
        spec = module("SCALE", lines)
        stopped(spec, tmp_path / "run")
        (tmp_path / "unrelated.py").write_text("")
        path.write_text("SCALE = 2.0\n")
        outcome, said = resumed(spec, tmp_path / "run")
        assert any("other code" in line for line in said)
        assert outcome.result == resumed(spec, tmp_path / "fresh")[0].result
    finally:
        for name in ("scale_beside", "scale_inner", "scale_outer", "scales", "scales.of_folder"):
            sys.modules.pop(name, None)


def test_what_did_not_change_resumes(tmp_path: Path, module: Callable[..., RunSpec]) -> None:
    """Touched files, other folders and checkpoints of earlier versions are no change."""
    for name, spec in {"text": text(tmp_path / "text", "some words "), "code": module()}.items():
        whole, _ = resumed(spec, tmp_path / f"{name} whole")
        stopped(spec, tmp_path / f"{name} cut")
        os.utime(tmp_path / "text")
        path = tmp_path / f"{name} cut" / store.CHECKPOINT
        content = checkpoint.load(path, torch.device("cpu"))
        assert content is not None
        assert content.pop("run") == spec.id
        assert content.pop("environment")["data" if name == "text" else "code"]
        checkpoint.save(path, content)
        outcome, said = resumed(spec, tmp_path / f"{name} cut")
        assert (outcome.result, said) == (whole.result, [])


def test_the_hash_is_that_of_the_start(tmp_path: Path) -> None:
    spec = text(tmp_path / "text", "at the start ")
    start = data.fingerprint(spec.data)

    def change(step: int, loss: float) -> None:
        text(tmp_path / "text", f"step {step} ")
        data.fingerprint(Text(path=str(tmp_path / "text")))

    outcome = execute(spec, tmp_path / "run", change)
    assert outcome is not None
    assert outcome.environment["data"] == start
    assert outcome.run == spec.id


def test_what_changes_between_sweeps_is_said(tmp_path: Path, module: Callable[..., RunSpec]) -> None:
    def plan(spec: RunSpec, seeds: int) -> study.StudyRuns:
        runs = tuple(structs.replace(spec, seed=seed) for seed in range(seeds))
        return structs.replace(PLAN, runs=runs)

    def other() -> None:
        text(tmp_path / "text", "and now others ")
        module("3.0")

    specs = {"data": text(tmp_path / "text", "words "), "code": module()}
    for name, spec in specs.items():
        assert run_all(tmp_path / name, plan(spec, 2)) == []
        assert run_all(tmp_path / name, plan(spec, 3)) == []
    other()
    for name, spec in specs.items():
        (said,) = run_all(tmp_path / name, plan(spec, 4))
        assert f"3 runs ended with other {name} than there is now" in said


def test_what_changed_since_a_run_ended_is_said(tmp_path: Path) -> None:
    """`run` does not train again what has ended: the result is that of the earlier text."""
    path = tmp_path / "run.toml"
    model = 'problem = {name = "nanogpt", layers = 1, width = 16, heads = 2, context = 16}'
    path.write_text(f'steps = 1\nbatch = 2\n{model}\ndata = {{name = "text", path = "{tmp_path / "text"}"}}\n')
    text(tmp_path / "text", "words ")
    for _ in range(2):
        run_file(path, tmp_path / "out", (), 1, "")
    text(tmp_path / "text", "and now others ")
    with pytest.warns(UserWarning, match="1 runs ended with other data than there is now"):
        run_file(path, tmp_path / "out", (), 1, "")
