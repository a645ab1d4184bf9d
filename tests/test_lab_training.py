"""Training: repeatable and resumable bit for bit, divergence is a result, telemetry is what the oracle did."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Callable
from functools import cache
from math import isclose
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from inexact_muon import lmo, measure, optim, polar
from inexact_muon.inexactness import assess
from inexact_muon.lmo import Spectral
from inexact_muon_lab import problems
from inexact_muon_lab.bounds.verify import follow
from inexact_muon_lab.errors import LabError, LabWarning
from inexact_muon_lab.problems import matrix, nanogpt
from inexact_muon_lab.spec.spec import SIZES, Matrix, NanoGPT, RunSpec, ScheduleSpec
from inexact_muon_lab.store import curves, store
from inexact_muon_lab.sweep.execute import check, execute
from inexact_muon_lab.train import checkpoint, optimizers
from inexact_muon_lab.train.observers import PARTS
from inexact_muon_lab.train.trainer import Training, train
from inexact_muon_lab.train.world import World, join, reseed
from lab_cases import CNN, CUSTOM, GPT, MATRIX, OPTIMIZERS, RUNS, run_spec
from lab_stores import reproducible

ALONE = World(0, 1, torch.device("cpu"))


def results(folder: Path) -> list[curves.Record]:
    return reproducible(folder / store.CURVES)


def finish(spec: RunSpec, folder: Path) -> store.Outcome:
    folder.mkdir(exist_ok=True)
    found = train(spec, folder, keep=True)
    assert found is not None
    return found


def weights(folder: Path) -> dict[str, Any]:
    found = checkpoint.load(folder / store.CHECKPOINT, ALONE.device)
    assert found is not None
    return found


def same(one: Any, two: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == two.dtype and bool(torch.equal(one, two))
    if isinstance(one, dict):
        return list(one) == list(two) and all(same(one[key], two[key]) for key in one)
    return bool(one == two)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[store.Outcome, Path]]:
    """The outcome of a run of the table that nothing disturbed, and its folder; trained once."""

    @cache
    def found(name: str) -> tuple[store.Outcome, Path]:
        folder = tmp_path_factory.mktemp("whole")
        return finish(run_spec(RUNS[name]), folder), folder

    return found


@pytest.mark.parametrize("name", RUNS)
def test_stopped_anywhere_and_resumed_is_uninterrupted_bit_for_bit(
    tmp_path: Path, name: str, uninterrupted: Callable[[str], tuple[store.Outcome, Path]]
) -> None:
    spec, (whole, folder) = run_spec(RUNS[name]), uninterrupted(name)
    rng = random.Random(name)
    parts, sittings = tmp_path / "parts", 0
    parts.mkdir()
    outcome = None
    while outcome is None:
        left = rng.randint(1, 5)

        def stopping() -> bool:
            nonlocal left
            left -= 1
            return left == 0

        outcome = train(spec, parts, stopping=stopping, keep=True)
        sittings += 1
    assert sittings > 2
    assert outcome.result == whole.result
    assert results(parts) == results(folder)
    for key in ("model", "optimizer", "losses", "step"):
        assert same(weights(parts)[key], weights(folder)[key]), key


@pytest.mark.parametrize("name", RUNS)
def test_a_crash_after_a_checkpoint_repeats_its_steps_bit_for_bit(
    tmp_path: Path, name: str, uninterrupted: Callable[[str], tuple[store.Outcome, Path]]
) -> None:
    spec, (whole, folder) = run_spec(RUNS[name]), uninterrupted(name)

    def crash(step: int, loss: float) -> None:
        if step == 7:
            raise KeyboardInterrupt

    (tmp_path / "parts").mkdir()
    with pytest.raises(KeyboardInterrupt):
        train(spec, tmp_path / "parts", crash)
    assert weights(tmp_path / "parts")["step"] == 4
    assert finish(spec, tmp_path / "parts").result == whole.result
    assert results(tmp_path / "parts") == results(folder)
    assert same(weights(tmp_path / "parts")["model"], weights(folder)["model"])


def test_another_run_in_the_same_process_changes_nothing(tmp_path: Path) -> None:
    spec = run_spec(RUNS["custom with dropout"])
    first = finish(spec, tmp_path / "1")
    finish(run_spec(RUNS["cnn, sgd"]), tmp_path / "2")
    torch.rand(7)
    random.random()
    assert finish(spec, tmp_path / "3").result == first.result


@pytest.mark.parametrize("name", [key for key in RUNS if "," in key])
def test_every_optimizer_trains(tmp_path: Path, name: str) -> None:
    spec = run_spec(RUNS[name], steps=40, evaluate_every=0)
    assert finish(spec, tmp_path / "run").state == "finished"
    losses = [r["loss"] for r in results(tmp_path / "run") if r["kind"] == "train"]
    assert losses[-1] < losses[0]


def test_seeds_differ_and_the_result_names_the_metrics(tmp_path: Path) -> None:
    found = [finish(run_spec({"problem": CNN}, seed=seed), tmp_path / str(seed)).result for seed in (0, 1)]
    assert found[0] != found[1]
    assert set(found[0]) == {"train_loss", "loss", "accuracy", "oracle_flops"}


OTHER: dict[str, Any] = {
    "lr": 0.03,
    "momentum": 0.4,
    "nesterov": None,
    "weight_decay": 0.9,
    "polar": "newton-schulz:1",
    "scale": "none",
    "adamw_lr": 0.02,
    "betas": (0.3, 0.4),
    "radius": 3.0,
    "head_radius": 3.0,
    "constrained": True,
    "decay": 0.3,
    "cautious": True,
    "before": "second-moment",
    "after": "row-moment + rms:0.5",
}
SECTIONS = [(kind, name) for kind in optimizers.BUILDERS for name in kind.__struct_fields__]
WIDE = GPT | {"width": 96}
"""Wide enough for the estimate to differ from the exact values."""
FIELDS: dict[str, dict[str, Any]] = {
    "seed": {"seed": 1},
    "batch": {"batch": 12},
    "validation": {"validation": 3},
    "precision": {"precision": "bfloat16"},
    "estimate": {"telemetry": {"every": 1, "exact": False}},
    "positions": {"problem": WIDE | {"positions": "learned"}},
    "warmup": {"schedule": {"warmup": 3}},
    "cooldown": {"schedule": {"cooldown": 1.0}},
    "floor": {"schedule": {"cooldown": 1.0, "floor": 0.5}},
    "shape": {"schedule": {"cooldown": 1.0, "shape": "cosine"}},
}


@pytest.mark.parametrize(("kind", "name"), SECTIONS, ids=lambda v: v if isinstance(v, str) else v.__name__)
def test_every_field_of_an_optimizer_matters(tmp_path: Path, kind: type, name: str) -> None:
    before = kind()
    value = not getattr(before, name) if OTHER[name] is None else OTHER[name]
    found = []
    for number, options in enumerate((before, kind(**{name: value}))):
        spec = structs.replace(run_spec({}, steps=3, record_every=1, evaluate_every=0), optimizer=options)
        found.append(finish(spec, tmp_path / str(number)).result)
    assert found[0] != found[1]


def test_every_field_of_a_run_matters(tmp_path: Path) -> None:
    found = {}
    for name, fields in ({"plain": {}} | FIELDS).items():
        spec = run_spec({"problem": WIDE, "telemetry": {"every": 1}} | fields, steps=4, evaluate_every=0)
        found[name] = finish(spec, tmp_path / name).result
    for one, two in itertools.combinations(found, 2):
        assert found[one] != found[two], (one, two)
    close = found["plain"] | {"lmo_error": found["estimate"]["lmo_error"]}
    assert found["estimate"] == close, "telemetry measures another way and changes nothing else"
    assert found["precision"]["loss"] == pytest.approx(found["plain"]["loss"], rel=0.02)


def test_what_is_recorded(tmp_path: Path) -> None:
    outcome = finish(run_spec(RUNS["measured"]), tmp_path)
    found = results(tmp_path)
    steps = {kind: [r["step"] for r in found if r["kind"] == kind] for kind in ("train", "validation", "lmo")}
    assert steps == {"train": [5, 10, 12], "validation": [6, 12], "lmo": [1, 5, 10, 12]}
    assert outcome.result["loss"] == [r for r in found if r["kind"] == "validation"][-1]["loss"]
    assert outcome.result["lmo_error"] == [r for r in found if r["kind"] == "lmo"][-1]["sum"]
    assert tuple(outcome.seconds) == PARTS
    assert all(outcome.seconds.values())


@pytest.mark.parametrize("name", ["muon", "adamw"])
def test_the_time_of_the_oracle_is_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """By a clock that stands still but for what is charged to it."""
    now, ask, step = 0.0, Spectral.directions, torch.optim.AdamW.step

    def charge(function: Any, seconds: float) -> Any:
        def charged(*given: Any) -> Any:
            nonlocal now
            now += seconds
            return function(*given)

        return charged

    monkeypatch.setattr("inexact_muon_lab.train.observers.time.perf_counter", lambda: now)
    monkeypatch.setattr(Spectral, "directions", charge(ask, 5.0))
    monkeypatch.setattr(torch.optim.AdamW, "step", charge(step, 3.0))
    monkeypatch.setattr(ScheduleSpec, "factor", charge(ScheduleSpec.factor, 1.0))
    training = Training(run_spec({"problem": CNN, "optimizer": OPTIMIZERS[name]}), tmp_path, ALONE)
    for _ in range(2):
        training.clock.start()
        training.advance(lambda: False)
    training.close()
    groups = len(training.optimizer.param_groups)
    found = {part: value for part, value in training.clock.seconds.items() if value}
    assert found == ({"oracle": 10.0, "optimizer": 2.0 * groups} if name == "muon" else {"optimizer": 8.0})


def charged(spec: RunSpec, folder: Path, monkeypatch: pytest.MonkeyPatch, stop: int = 0) -> dict[str, float]:
    """Seconds by part by a clock that only oracles (5 s) and measurements (100 s) advance; stopped and resumed once."""
    now, steps = 0.0, 0

    def charge(function: Any, seconds: float) -> Any:
        def costly(*given: Any) -> Any:
            nonlocal now
            now += seconds
            return function(*given)

        return costly

    def stopping() -> bool:
        nonlocal steps
        steps += 1
        return steps == stop

    with monkeypatch.context() as patch:
        patch.setattr("inexact_muon_lab.train.observers.time.perf_counter", lambda: now)
        patch.setattr(Spectral, "directions", charge(Spectral.directions, 5.0))
        patch.setattr("inexact_muon_lab.train.observers.assess", charge(assess, 100.0))
        folder.mkdir()
        found = train(spec, folder, stopping=stopping)
        found = found or train(spec, folder)
    assert found is not None
    return {part: value for part, value in found.seconds.items() if value}


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("stop", [1, 5, 11])
@pytest.mark.parametrize("optimizer", ["muon", "scion", "hyperball"])
def test_a_resumed_run_books_its_time_to_the_same_parts(
    optimizer: str, stop: int, exact: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = run_spec({"optimizer": OPTIMIZERS[optimizer]}, telemetry={"every": 3, "exact": exact})
    once = charged(spec, tmp_path / "once", monkeypatch)
    assert set(once) == {"oracle", "telemetry"}
    assert charged(spec, tmp_path / "resumed", monkeypatch, stop) == once


def test_without_validation_the_training_loss_is_the_result(tmp_path: Path) -> None:
    result = finish(run_spec(RUNS["custom with dropout"], evaluate_every=1), tmp_path).result
    assert result["loss"] == result["train_loss"] == results(tmp_path)[-1]["loss"]


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("problem", [GPT, CNN])
def test_every_process_reports_the_same_metrics_of_few_batches(
    problem: dict[str, Any], size: int, tmp_path: Path
) -> None:
    """With fewer validation batches than processes: their sums are added, so their lists must have one length."""
    spec = run_spec({"problem": problem}, validation=1)
    sums: list[list[float]] = []

    class Member(World):
        def mean(self, values: list[float]) -> list[float]:
            sums.append(values)
            return values

    for rank in range(size):
        training = Training(spec, tmp_path, ALONE)
        training.world = Member(rank, size, torch.device("cpu"))
        training.evaluate()
        training.close()
    alone = Training(spec, tmp_path, ALONE)
    alone.evaluate()
    alone.close()
    assert {len(values) for values in sums} == {len(alone.result)}
    assert [sum(column) for column in zip(*sums, strict=True)] == list(alone.result.values())


def test_a_record_is_the_mean_of_its_steps(tmp_path: Path) -> None:
    losses: list[float] = []
    train(run_spec({"problem": GPT}), tmp_path, lambda step, loss: losses.append(loss))
    recorded = [r["loss"] for r in results(tmp_path) if r["kind"] == "train"]
    assert recorded == [sum(losses[:5]) / 5, sum(losses[5:10]) / 5, sum(losses[10:]) / 2]


def test_accumulated_gradients_are_those_of_the_whole_batch(tmp_path: Path) -> None:
    gradients = []
    for accumulate in (1, 4):
        training = Training(run_spec({"problem": GPT}, accumulate=accumulate), tmp_path, ALONE)
        training.advance(lambda: False)
        gradients.append([p.grad for p in training.model.parameters()])
        training.close()
    for one, two in zip(*gradients, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-6)


def test_shares_are_a_partition() -> None:
    batch = (torch.arange(24),)
    worlds = [World(rank, 3, torch.device("cpu")) for rank in range(3)]
    seen = torch.cat([world.share(batch, 2, part)[0] for part in range(2) for world in worlds])
    assert torch.equal(seen, batch[0])


def test_processes_must_divide_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(LabError, match="batch = 8 is not a multiple of 3 processes times accumulate = 2"):
        join("cpu", 8, 2).__enter__()


def test_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(LabError, match='device = "cuda": this machine has no usable GPU'):
        join("cuda", 8, 1).__enter__()


# ends -----------------------------------------------------------------------------------------------------------------


def test_divergence_is_a_result(tmp_path: Path) -> None:
    spec = run_spec({"problem": CUSTOM, "optimizer": {"name": "sgd", "lr": 1e6}}, steps=60)
    outcome = execute(spec, tmp_path)
    assert outcome is not None
    assert (outcome.state, outcome.result["train_loss"]) == ("diverged", None)
    assert 1 < outcome.step < 60
    last = results(tmp_path)[-1]
    assert (last["kind"], last["step"], last["loss"]) == ("train", outcome.step, None)
    assert not (tmp_path / store.CHECKPOINT).exists()
    assert execute(spec, tmp_path) == outcome


def test_divergence_between_steps_is_seen_by_validation(tmp_path: Path) -> None:
    spec = run_spec({"problem": GPT, "optimizer": {"name": "sgd", "lr": 1e30, "momentum": 0.0}}, steps=1)
    assert finish(spec, tmp_path).state == "diverged"
    assert results(tmp_path)[-1]["loss"] is None


def test_a_failure_keeps_its_traceback_and_its_checkpoint(tmp_path: Path) -> None:
    spec = run_spec({"problem": CUSTOM | {"arguments": {"fail_at": 6}}, "optimizer": {"name": "sgd"}})
    outcome = execute(spec, tmp_path)
    assert outcome is not None
    assert (outcome.state, outcome.step) == ("failed", 6)
    assert "the data is gone" in outcome.error
    assert "Traceback" in outcome.error
    assert weights(tmp_path)["step"] == 4


def test_a_finished_run_is_not_repeated(tmp_path: Path) -> None:
    spec = run_spec({"problem": CNN})
    (tmp_path / ".checkpoint.pt.4711").write_bytes(b"what a killed writer left")
    first = execute(spec, tmp_path)
    before = (tmp_path / store.CURVES).read_bytes()
    assert execute(spec, tmp_path) == first
    assert (tmp_path / store.CURVES).read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == [store.CURVES, "lock", store.OUTCOME]


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    (tmp_path / store.CHECKPOINT).write_bytes(b"nonsense")
    with pytest.warns(LabWarning, match=r"checkpoint.pt is damaged or cut off; the run starts again from the"):
        execute(run_spec({"problem": CNN}), tmp_path)


# schedule -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, [1, 1, 1, 1]),
        ({"warmup": 2}, [0.5, 1, 1, 1]),
        ({"cooldown": 1.0}, [1, 0.75, 0.5, 0.25]),
        ({"cooldown": 0.5, "floor": 0.5}, [1, 1, 1, 0.75]),
        ({"cooldown": 0.5, "shape": "cosine"}, [1, 1, 1, 0.5]),
        ({"warmup": 2, "cooldown": 0.5}, [0.5, 1, 1, 0.5]),
    ],
)
def test_schedules(fields: dict[str, Any], expected: list[float]) -> None:
    found = [ScheduleSpec(**fields).factor(step, 4) for step in range(4)]
    assert found == pytest.approx(expected)


@given(st.integers(0, 20), st.floats(0, 1), st.floats(0, 1), st.integers(1, 50), st.sampled_from(["linear", "cosine"]))
def test_a_schedule_rises_then_falls_and_stays_in_range(
    warm: int, cool: float, floor: float, steps: int, shape: Any
) -> None:
    schedule = ScheduleSpec(warmup=warm, cooldown=cool, floor=floor, shape=shape)
    found = [schedule.factor(step, steps) for step in range(steps)]
    assert all(0 < f <= 1 + 1e-12 for f in found)
    assert all(a <= b + 1e-12 for a, b in itertools.pairwise(found[:warm]))
    assert all(a >= b - 1e-12 for a, b in itertools.pairwise(found[warm:]))


def test_the_schedule_reaches_every_group(tmp_path: Path) -> None:
    training = Training(run_spec({"problem": GPT, "schedule": {"warmup": 10}}), tmp_path, ALONE)
    training.advance(lambda: False)
    assert [group["lr"] for group in training.optimizer.param_groups] == [r * 0.1 for r in training.rates]
    training.close()


EXACTLY = {"every": 1, "exact": True}

# telemetry ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["muon", "muon, plain", "scion"])
@pytest.mark.parametrize("problem", [GPT, CNN], ids=["gpt", "cnn"])
def test_the_lmo_error_is_that_of_the_step_taken(tmp_path: Path, name: str, problem: dict[str, Any]) -> None:
    """Against d_hat recovered from the weights before and after."""
    spec = {"problem": problem, "optimizer": OPTIMIZERS[name], "telemetry": EXACTLY}
    training = Training(run_spec(spec), tmp_path, ALONE)
    for _ in range(3):
        training.advance(lambda: False)
    before = {key: value.detach().clone() for key, value in training.model.named_parameters()}
    buffers = copy.deepcopy(training.optimizer.state_dict()["state"])
    training.advance(lambda: False)
    found = training.observer.summary()
    assert found["sum"] == sum(found["delta"].values())
    optimizer = training.optimizer
    assert isinstance(optimizer, optim.LMOOptimizer)
    position = 0
    for group in optimizer.param_groups:
        for label, p in zip(group["param_names"], group["params"], strict=True):
            old = buffers[position]
            position += 1
            if label not in found["delta"]:
                continue
            m = old["momentum_buffer"].lerp(p.grad, 1 - group["momentum"])
            m = p.grad.lerp(m, group["momentum"]) if group["nesterov"] else m
            moved = p.detach() - before[label] * (1 - group["lr"] * group["weight_decay"])
            flat, step = m.flatten(1), moved.flatten(1).double()
            ball = optimizer.ball(group)
            size = group["lr"] * group["radius"] * optim.SCALES[group["scale"]](*flat.shape)
            expected = measure(ball, flat.double(), step / size, exact=True)
            assert isclose(found["delta"][label], expected.delta, rel_tol=1e-2, abs_tol=1e-3), label
            assert isclose(found["gap"][label], expected.gap, rel_tol=1e-2, abs_tol=1e-3), label
            assert isclose(found["overshoot"][label], expected.overshoot, rel_tol=1e-2), label
    training.close()


def test_fused_weights_are_several_matrices(tmp_path: Path) -> None:
    training = Training(run_spec({"problem": GPT, "telemetry": EXACTLY}), tmp_path, ALONE)
    training.advance(lambda: False)
    names = list(training.observer.summary()["delta"])
    assert [n for n in names if "qkv" in n] == [f"blocks.0.qkv.weight[{i}]" for i in range(3)]
    assert len(names) == 6
    training.close()


def test_an_exact_oracle_has_no_error_and_few_steps_have_more(tmp_path: Path) -> None:
    sums = []
    for text in ("exact-svd", "polar-express:8", "polar-express:2", "polar-express:1"):
        spec = {"optimizer": {"name": "muon", "polar": text}, "telemetry": EXACTLY}
        training = Training(run_spec(spec), tmp_path, ALONE)
        training.advance(lambda: False)
        sums.append(training.observer.summary()["sum"])
        training.close()
    assert sums[0] < 1e-4
    assert sums == sorted(sums)


def test_no_lmo_no_error(tmp_path: Path) -> None:
    for name in ("sgd", "adamw", "sign-sgd"):
        training = Training(run_spec({"optimizer": OPTIMIZERS[name], "telemetry": EXACTLY}), tmp_path, ALONE)
        training.advance(lambda: False)
        assert training.observer.summary() == {}
        training.close()


def test_telemetry_does_not_touch_training(tmp_path: Path) -> None:
    plain = finish(run_spec({"problem": CNN}), tmp_path / "plain")
    measured = finish(run_spec({"problem": CNN, "telemetry": {"every": 1}}), tmp_path / "measured")
    assert {k: v for k, v in measured.result.items() if k != "lmo_error"} == plain.result


# problems -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("positions", ["rotary", "learned"])
def test_the_gpt_does_not_look_ahead(positions: Any) -> None:
    reseed(0, 0, 0)
    model = nanogpt.GPT(NanoGPT(layers=2, width=16, heads=2, context=12, positions=positions), 50)
    tokens = torch.randperm(50)[None, :12]
    changed = tokens.clone()
    changed[0, 7:] = (changed[0, 7:] + 1) % 50
    one, two = model(tokens), model(changed)
    torch.testing.assert_close(one[:, :7], two[:, :7])
    assert not torch.allclose(one[:, 7:], two[:, 7:])
    moved = tokens.clone()
    moved[0, :2] = tokens[0, [1, 0]]
    assert not torch.allclose(model(tokens)[0, -1], model(moved)[0, -1])  # the order matters


def test_rotations_depend_on_distance_alone() -> None:
    cos, sin = nanogpt.rotary(10, 8)
    q, k = torch.randn(8), torch.randn(8)
    at = [nanogpt.rotate(q, cos[i], sin[i]) @ nanogpt.rotate(k, cos[i + 3], sin[i + 3]) for i in range(7)]
    torch.testing.assert_close(torch.stack(at), at[0].expand(7))


@pytest.mark.parametrize(("size", "millions"), [("tiny", 0.3), ("small", 10.8), ("124M", 162.2)])
def test_sizes(size: Any, millions: float) -> None:
    with torch.device("meta"):
        model = nanogpt.GPT(NanoGPT(size=size), 50304 if size == "124M" else 256)
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(millions, rel=0.1)
    hidden = [r for r in optim.routes(model) if r.algorithm == "lmo"]
    assert len(hidden) == 4 * SIZES[size]["layers"]
    assert {r.name.split(".")[0] for r in hidden} == {"blocks"}


def test_the_cnn_has_its_kernels_flattened() -> None:
    task = problems.build(run_spec({"problem": CNN}))
    found = {r.name: r for r in optim.routes(task.model)}
    assert sum(r.algorithm == "lmo" for r in found.values()) == 6
    assert found["head.weight"].algorithm == "adamw"


def test_scion_takes_radii_from_shapes() -> None:
    task = problems.build(run_spec({"problem": CNN}))
    optimizer = optimizers.build(task.model, run_spec({"optimizer": {"name": "scion", "radius": 6.0}}).optimizer)
    assert isinstance(optimizer, optim.LMOOptimizer)
    kernel = next(g for g in optimizer.param_groups if g["param_names"] == ["blocks.0.second.weight"])
    ball = optimizer.ball(kernel)
    size = ball.radius((4, 4 * 9)) * kernel["radius"]
    assert size == pytest.approx(6.0 / 9)  # radius * sqrt(out/in) / k^2
    head = next(g for g in optimizer.param_groups if g["param_names"] == ["head.weight"])
    assert isinstance(optimizer.ball(head), lmo.Sign)


FUNCTIONS = ("quadratic", "logistic", "exponential")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_gradient_of_a_matrix_problem_has_noise_of_its_size(name: str) -> None:
    fields = {"problem": {"name": "matrix", "function": name, "rows": 5, "columns": 7, "noise": 3.0}}
    spec = run_spec(fields, batch=16)
    task = problems.build(spec)
    assert isinstance(spec.problem, Matrix)
    exact = matrix.function(spec.problem, spec.seed).gradient(torch.zeros(5, 7, dtype=torch.float64))
    errors = []
    for step in range(400):
        task.model.zero_grad()
        task.loss(task.model, task.batch(step)).backward()
        (parameter,) = task.model.parameters()
        assert parameter.grad is not None
        errors.append(parameter.grad - exact)
    noise = torch.stack(errors)
    assert float(noise.square().sum(dim=(1, 2)).mean()) == pytest.approx(3.0**2 / 16, rel=0.05)
    assert float(noise.mean(dim=0).norm()) < 3 * 3.0 / (16 * 400) ** 0.5
    assert set(task.measure(task.model, ())) == {"loss", "gradient"}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_training_a_matrix_is_the_algorithm_that_the_theorems_are_checked_on(tmp_path: Path, name: str) -> None:
    options = {"name": "muon", "lr": 0.1, "momentum": 0.0, "nesterov": False, "scale": "none", "polar": "jordan:5"}
    options |= {"weight_decay": 0.0}
    problem = {"name": "matrix", "function": name, "noise": 0.0}
    spec = run_spec({"problem": problem, "optimizer": options}, seed=3, evaluate_every=1)
    finish(spec, tmp_path)
    assert isinstance(spec.problem, Matrix)
    ball = lmo.Spectral(polar=polar.parse("jordan:5"))
    run = follow(matrix.function(spec.problem, 3), ball, spec.steps, lambda *_: 0.1)
    for key, column in (("loss", run.loss), ("gradient", run.dual)):
        found = [r[key] for r in results(tmp_path) if r["kind"] == "validation"]
        assert found == pytest.approx(column[1:, 0].tolist(), rel=1e-6), key


def test_a_seed_is_another_matrix_problem() -> None:
    tasks = [problems.build(run_spec({"problem": MATRIX}, seed=seed)) for seed in (0, 0, 1)]
    batches = [task.batch(4)[0] for task in tasks]
    losses = [float(task.measure(task.model, ())["loss"].detach()) for task in tasks]
    assert torch.equal(batches[0], batches[1])
    assert not torch.equal(batches[0], batches[2])
    assert losses[0] == losses[1] != losses[2]


def test_every_problem_and_optimizer_of_the_spec_can_be_built() -> None:
    from typing import get_args

    from inexact_muon_lab import data
    from inexact_muon_lab.spec import spec

    assert set(get_args(spec.Problem)) == set(problems.PROBLEMS)
    assert set(get_args(spec.Optimizer)) == set(optimizers.BUILDERS)
    assert set(get_args(spec.Data)) == set(data.READERS)


# what is wrong before training ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"optimizer": {"name": "muon", "polar": "polar-expres:5"}}, "optimizer.polar: unknown name 'polar-expres'"),
        ({"optimizer": {"name": "muon", "after": "row-momnt"}}, "optimizer.after: unknown name 'row-momnt'"),
        ({"optimizer": {"name": "scion", "polar": "jordan(step=5)"}}, "jordan has no 'step'.*did you mean 'steps'"),
        ({"problem": {"name": "custom", "target": "lab_cases"}}, "problem.target must look like module:function"),
        (
            {"problem": {"name": "custom", "target": "lab_case:x"}},
            "there is no module 'lab_case' in .* or on the Python",
        ),
        (
            {"problem": {"name": "custom", "target": "lab_cases:linea"}},
            "has no function 'linea': did you mean 'linear'",
        ),
        ({"data": {"name": "text", "path": "/nowhere"}}, "data.path: there is no /nowhere"),
    ],
)
def test_bad_runs_are_refused_before_they_start(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(LabError, match=sentence):
        check(run_spec(fields))


def test_a_custom_function_must_return_a_task(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"lab_cases:not_a_task must return inexact_muon_lab.problems.Task, got int"):
        execute(run_spec({"problem": {"name": "custom", "target": "lab_cases:not_a_task"}}), tmp_path)


def test_the_oracle_is_the_one_named() -> None:
    assert optimizers.oracle("polar-express(steps=3, normalise=frobenius)") == polar.PolarExpress(
        3, normalise="frobenius"
    )
