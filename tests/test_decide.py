"""`decide` announces seeds from the pilot alone, trains just these, resumes after a kill, and keeps to its budget."""

from __future__ import annotations

import io
import json
import re
import time
from collections.abc import Callable
from math import log
from pathlib import Path

import msgspec
import numpy as np
import pytest
from rich.console import Console

pytest.importorskip("altair", reason="the page needs the extra `lab`")

from inexact_muon_lab.decide.command import assess, decide, seconds
from inexact_muon_lab.decide.needs import Need
from inexact_muon_lab.errors import LabError
from inexact_muon_lab.report.build import build
from inexact_muon_lab.report.claims import judge
from inexact_muon_lab.report.load import load
from inexact_muon_lab.spec import study
from inexact_muon_lab.spec.oracle_text import parts
from inexact_muon_lab.spec.spec import RunSpec
from inexact_muon_lab.statistics import CONFIRMED, LEVEL, UNDECIDED, interval, seeds_needed
from inexact_muon_lab.store import packing, store
from inexact_muon_lab.store.store import Outcome, write_outcome
from inexact_muon_lab.sweep.events import Done, Event
from inexact_muon_lab.sweep.sweep import sweep
from inexact_muon_lab.terminal import plain
from lab_processes import finish, kill, start
from tiers import at_length

NOISE = 0.01
EFFECT = 2 * NOISE
LADDER = """
name = "simulated"
seeds = [0, 1, 2, 3, 4, 5]

[base]
steps = 1
problem = { name = "custom", target = "lab_cases:linear" }
optimizer = { name = "muon", lr = 0.1, momentum = 0.9 }

[[grid]]
optimizer.polar = ["polar-express(steps=1)", "polar-express(steps=5)"]

[decide]
family = ["lower-loss", "lr-moves"]
width = { lower-loss = 0.01 }
"""
GRID = """
name = "plane"
seeds = [0, 1, 2, 3]

[base]
steps = 1
problem = { name = "custom", target = "lab_cases:linear" }
optimizer = { name = "muon" }

[[grid]]
optimizer.polar = ["polar-express(steps=2)", "polar-express(steps=5)"]
optimizer.lr = [0.025, 0.05, 0.1]
optimizer.momentum = [0.5, 0.8, 0.95]

[decide]
family = ["lr-moves", "region"]
width = { lr-moves = 0.4 }
"""
Loss = Callable[[RunSpec], float]


class Killed(BaseException):
    """The process dies."""


class Simulated:
    """An engine whose runs take no time; it dies after so many of them."""

    slots = 2

    def __init__(self, loss: Loss, alive: int = 10**9, each: float = 3.0) -> None:
        self.loss, self.alive, self.each = loss, alive, each
        self.jobs: list[tuple[RunSpec, Path]] = []
        self.trained: list[RunSpec] = []

    def submit(self, spec: RunSpec, folder: Path) -> None:
        self.jobs.append((spec, folder))

    def poll(self, timeout: float) -> list[Event]:
        events: list[Event] = []
        for spec, folder in self.jobs:
            if self.alive == 0:
                raise Killed
            self.alive -= 1
            self.trained.append(spec)
            loss = self.loss(spec)
            outcome = Outcome(state="finished", step=1, result={"loss": loss}, seconds={"forward": self.each})
            write_outcome(folder, outcome)
            events.append(Done(spec.id, outcome))
        self.jobs = []
        return events

    def stop(self) -> None:
        pass

    def close(self) -> None:
        pass


def count(spec: RunSpec) -> int:
    found = parts(spec.optimizer.polar).iterations  # type: ignore[union-attr]
    assert found is not None
    return found


def ladder_loss(repeat: int, effect: float = EFFECT, noise: float = NOISE) -> Loss:
    """Both arms share the luck of their seed; their difference varies by `noise`."""

    def loss(spec: RunSpec) -> float:
        luck = np.random.default_rng([repeat, spec.seed]).standard_normal()
        own = np.random.default_rng([repeat, spec.seed, count(spec)]).standard_normal()
        return float(2.0 + 0.1 * luck + noise / 2**0.5 * own + (effect if count(spec) == 1 else 0.0))

    return loss


def grid_loss(best: dict[int, float]) -> Loss:
    def loss(spec: RunSpec) -> float:
        x = log(spec.optimizer.lr / best[count(spec)])
        y = log((1 - spec.optimizer.momentum) / 0.2)  # type: ignore[union-attr]
        own = np.random.default_rng([spec.seed, int(spec.id, 16)]).standard_normal()
        return float(2.0 + 0.1 * (x * x + y * y) + 1e-3 * own)

    return loss


def study_file(folder: Path, text: str = LADDER) -> Path:
    path = folder / "study.toml"
    path.write_text(text)
    return path


def settle(path: Path, out: Path, engine: Simulated, **options: object) -> tuple[list[Need], str]:
    said = Console(file=io.StringIO(), width=200)
    found = decide([path], out, lambda: engine, said, page=False, **options)  # type: ignore[arg-type]
    return found, said.file.getvalue()  # type: ignore[attr-defined]


def test_needs_as_plain_data(tmp_path: Path) -> None:
    found, _ = settle(study_file(tmp_path), tmp_path / "out", Simulated(ladder_loss(4)))
    records = json.loads(json.dumps(plain([need.record for need in found]), allow_nan=False))
    for need, record in zip(found, records, strict=True):
        assert (record["claim"], record["verdict"]) == (need.item.claim.id, need.item.verdict)
        assert (record["has"], record["wanted"], len(record["runs"])) == (need.has, need.required, len(need.runs))


def test_an_effect_of_twice_the_noise_is_decided_with_the_seeds_announced(tmp_path: Path) -> None:
    """Killed twice on the way: in the pilot and after it."""
    path, repeats, decided = study_file(tmp_path), 20, 0
    for repeat in range(repeats):
        loss, out = ladder_loss(repeat), tmp_path / str(repeat)
        pilot = [loss(spec) for spec in study.load(path).runs]
        differences = np.array(pilot).reshape(2, 6)
        announced = seeds_needed(interval((differences[0] - differences[1]).tolist()).spread, 6, 0.01, LEVEL / 2)
        engines = [Simulated(loss, alive) for alive in (5, min(9, 2 * announced - 6))]
        for engine in engines:
            with pytest.raises(Killed):
                settle(path, out, engine)
        last = Simulated(loss)
        (need,), said = settle(path, out, last)
        trained = [spec.id for engine in (*engines, last) for spec in engine.trained]
        assert len(trained) == len(set(trained)) == 2 * announced
        assert (need.has, need.required, need.runs) == (announced, announced, ())
        assert need.item.finding.p.verdict() in (CONFIRMED, UNDECIDED)
        decided += need.item.verdict == CONFIRMED
        assert f"  {announced} " in said
    print(f"decided {decided} of {repeats}")
    assert decided >= 0.8 * repeats


def test_no_effect_is_rarely_decided(tmp_path: Path) -> None:
    path, wrong = study_file(tmp_path), 0
    for repeat in range(12):
        (need,), _ = settle(path, tmp_path / str(repeat), Simulated(ladder_loss(1000 + repeat, effect=0.0)))
        wrong += need.item.verdict != UNDECIDED
    assert wrong <= 2


def test_an_early_look_is_not_a_test(tmp_path: Path) -> None:
    """With the pilot alone the interval is far from zero, and the verdict still waits for the seeds promised."""
    path = study_file(tmp_path, LADDER.replace("lower-loss = 0.01", "lower-loss = 0.006"))
    with pytest.raises(Killed):
        settle(path, tmp_path / "out", Simulated(ladder_loss(0, effect=0.2), alive=14))
    (need,) = assess([study.load(path)], tmp_path / "out", 2, ())
    assert need.item.finding.interval.low > 0.1
    assert need.item.verdict == UNDECIDED
    assert re.search(r"promised \d+ seeds from the pilot's spread, has [67]", need.item.finding.note)
    assert need.seconds == pytest.approx(len(need.runs) * 3.0 / 2)
    (need,), _ = settle(path, tmp_path / "out", Simulated(ladder_loss(0, effect=0.2)))
    assert need.item.verdict == CONFIRMED


def test_seeds_added_after_looking_are_labelled(tmp_path: Path) -> None:
    path, out, loss = study_file(tmp_path), tmp_path / "out", ladder_loss(3)
    (need,), _ = settle(path, out, Simulated(loss))
    assert "after looking" not in need.item.finding.note
    wider = path.read_text().replace("seeds = [0, 1, 2, 3, 4, 5]", f"seeds = {list(range(need.has + 2))}")
    wider = wider.replace("[decide]", "[decide]\npilot = [0, 1, 2, 3, 4, 5]")
    path.write_text(wider)
    sweep(study.load(path), out / "simulated", lambda: Simulated(loss), Console(quiet=True))
    (found,) = [j for j in judge(load(out)) if j.claim.id == "lower-loss"]
    assert "2 seeds were added after looking" in found.finding.note
    assert found.finding.interval.freedom == 5  # the pilot's spread all the same


def test_a_declaration_that_changes_after_runs_have_ended_is_marked(tmp_path: Path) -> None:
    path, out = study_file(tmp_path), tmp_path / "out"
    settle(path, out, Simulated(ladder_loss(4)))
    assert "changed after" not in build(out, pictures=False).page.read_text()
    path.write_text(path.read_text().replace("lower-loss = 0.01", "lower-loss = 0.02"))
    _, said = settle(path, out, Simulated(ladder_loss(4)))
    page = build(out, pictures=False).page.read_text()
    assert "this declaration was changed after runs had ended" in page
    assert "family lower-loss, lr-moves; pilot of seeds 0, 1, 2, 3, 4, 5; half-widths lower-loss 0.02" in said
    assert "family lower loss, lr moves; pilot of seeds 0, 1, 2, 3, 4, 5; half-widths lower loss 0.02" in page


def test_what_the_budget_does_not_reach_is_said_with_its_cost(tmp_path: Path) -> None:
    """Runs say that they took an hour: after the pilot nothing fits."""
    path = study_file(tmp_path)
    (need,), said = settle(path, tmp_path / "out", Simulated(ladder_loss(5), each=3600.0), budget=60.0)
    assert need.item.verdict == UNDECIDED
    assert need.has == 6 < need.required
    assert need.seconds == len(need.runs) * 1800.0
    assert f"{len(need.runs) // 2}:00:00" in said


def test_a_budget_that_is_over_begins_nothing(tmp_path: Path) -> None:
    engine = Simulated(ladder_loss(5))
    (need,), said = settle(study_file(tmp_path), tmp_path / "out", engine, budget=0.0)
    assert engine.trained == []
    assert (need.has, len(need.runs), need.seconds) == (0, 12, None)
    assert "the pilot is not complete" in said


def test_more_seeds_than_allowed_are_not_trained(tmp_path: Path) -> None:
    path = study_file(tmp_path, LADDER + "most = 8\n")
    engine = Simulated(ladder_loss(6, noise=0.1))
    (need,), said = settle(path, tmp_path / "out", engine)
    assert len(engine.trained) == 12
    assert need.required > 8
    assert f"needs {need.required} seeds, the study allows 8" in said


def test_a_grid_goes_on_beyond_its_edge(tmp_path: Path) -> None:
    """The best step sizes lie outside: two more values below, and the shift is then decided."""
    path, out = study_file(tmp_path, GRID), tmp_path / "out"
    engine = Simulated(grid_loss({2: 0.012, 5: 0.024}))
    (need,), said = settle(path, out, engine)
    rates = {spec.optimizer.lr for spec in engine.trained}
    assert rates >= {0.0125, 0.00625}
    assert len(engine.trained) == len({spec.id for spec in engine.trained})
    assert "an optimum is on the grid's edge" in said
    assert need.item.verdict == CONFIRMED
    assert 2**need.item.finding.interval.mean == pytest.approx(0.5, rel=0.1)


def test_an_edge_that_never_ends_is_given_up(tmp_path: Path) -> None:
    engine = Simulated(grid_loss({2: 1e-9, 5: 1e-9}))
    (need,), said = settle(study_file(tmp_path, GRID), tmp_path / "out", engine)
    assert len({spec.optimizer.lr for spec in engine.trained}) == 7
    assert "cannot be extended" in said
    assert need.item.verdict == UNDECIDED


def test_it_goes_on_from_packed_evidence(tmp_path: Path) -> None:
    path, loss = study_file(tmp_path), ladder_loss(7)
    first = Simulated(loss, alive=14)
    with pytest.raises(Killed):
        settle(path, tmp_path / "a", first)
    packing.pack_all([tmp_path / "a"], tmp_path / "a.pack", Console(quiet=True))
    second = Simulated(loss)
    (need,), _ = settle(path, tmp_path / "b", second, packed=[tmp_path / "a.pack"])
    assert len(first.trained) + len(second.trained) == 2 * need.required
    assert not need.runs


def test_it_takes_the_runs_of_another_study(tmp_path: Path) -> None:
    path, loss = study_file(tmp_path), ladder_loss(7)
    settle(path, tmp_path / "a", Simulated(loss))
    packing.pack_all([tmp_path / "a"], tmp_path / "a.pack", Console(quiet=True))
    other = study_file(tmp_path, LADDER.replace("simulated", "renamed"))
    again = Simulated(loss)
    settle(other, tmp_path / "b", again, packed=[tmp_path / "a.pack"])
    pilot = {spec.id for spec in study.load(other).runs}
    assert not pilot & {spec.id for spec in again.trained}


def test_evidence_of_no_use_is_refused(tmp_path: Path) -> None:
    settle(study_file(tmp_path, GRID), tmp_path / "a", Simulated(grid_loss({2: 0.1, 5: 0.1})))
    packing.pack_all([tmp_path / "a"], tmp_path / "a.pack", Console(quiet=True))
    with pytest.raises(LabError, match=r"a\.pack: no run of simulated"):
        settle(study_file(tmp_path), tmp_path / "b", Simulated(ladder_loss(7)), packed=[tmp_path / "a.pack"])
    with pytest.raises(LabError, match=r"c\.pack: no such file"):
        settle(study_file(tmp_path), tmp_path / "b", Simulated(ladder_loss(7)), packed=[tmp_path / "c.pack"])
    assert not (tmp_path / "b").exists()


def test_runs_that_do_not_compare_are_not_asked_for_again(tmp_path: Path) -> None:
    """One arm of one seed was trained elsewhere: the pair is refused, and training it again is no use."""
    path, out = study_file(tmp_path), tmp_path / "out"
    strange = study.load(path).runs[0]

    class Mixed(Simulated):
        def poll(self, timeout: float) -> list[Event]:
            events = super().poll(timeout)
            for event in events:
                if isinstance(event, Done) and event.run == strange.id and event.outcome is not None:
                    other = msgspec.structs.replace(event.outcome, environment={"torch": "1.0"})
                    write_outcome(store.run_folder(out / "simulated", event.run), other)
                    events = [Done(e.run, other) if e is event else e for e in events]
            return events

    (need,), said = settle(path, out, Mixed(ladder_loss(9)))
    assert (need.has, need.runs) == (5, ())
    assert "the pilot is not complete" in said
    assert any("do not compare" in sentence for sentence in load(out).tables.problems)


def test_only_the_claims_that_are_asked_for(tmp_path: Path) -> None:
    both = LADDER.replace("lower-loss = 0.01 }", "lower-loss = 0.01, first-steps = 1e-5 }")
    both = both.replace('"lr-moves"', '"first-steps"').replace(
        '"polar-express(steps=5)"]', '"polar-express(steps=3)", "polar-express(steps=5)"]'
    )
    path = study_file(tmp_path, both)
    found, _ = settle(path, tmp_path / "out", Simulated(ladder_loss(8)), claims=["lower-loss"])
    assert [need.item.claim.id for need in found] == ["lower-loss"]
    with pytest.raises(LabError, match="no study declares a width for 'time'"):
        settle(path, tmp_path / "out", Simulated(ladder_loss(8)), claims=["time"])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (LADDER.split("[decide]")[0], r"has no table \[decide\]"),
        (
            LADDER.replace('["lower-loss", "lr-moves"]', '["lower-los"]').replace("lower-loss =", "lower-los ="),
            "did you mean",
        ),
        (LADDER.replace("width = { lower-loss", "width = { region"), "'region' is not in the family"),
        (LADDER.replace("[0, 1, 2, 3, 4, 5]", "[0, 1]"), "the pilot must be 3 or more of the seeds"),
        (LADDER.replace("0.01 }", "-1 }"), "decide.width"),
    ],
)
def test_a_mistake_is_one_sentence_and_nothing_is_written(text: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(LabError, match=sentence):
        settle(study_file(tmp_path, text), tmp_path / "out", Simulated(ladder_loss(0)))
    assert not (tmp_path / "out").exists()


def test_budgets() -> None:
    assert [seconds(text) for text in ("", "40m", "2h", "1h30m", "90s", "0.5h")] == [None, 2400, 7200, 5400, 90, 1800]
    for text in ("40", "m", "1d", "40 m", "-3m"):
        with pytest.raises(LabError, match="must look like"):
            seconds(text)


REAL = """
name = "real"
seeds = [0, 1, 2]
[base]
steps = 20
batch = 2
checkpoint_every = 5
validation = 1
problem = { name = "matrix", rows = 4, columns = 3, noise = 0.1 }
optimizer = { name = "muon", lr = 0.05, momentum = 0.9, nesterov = false, scale = "none", weight_decay = 0.0 }
[[grid]]
optimizer.polar = ["polar-express(steps=1)", "polar-express(steps=5)"]
[decide]
family = ["lower-loss"]
width = { lower-loss = 10.0 }
"""


@pytest.mark.slow
@pytest.mark.parametrize("engine", at_length([()], ("--engine", "slurm", "--address", "local")), ids=["local", "slurm"])
def test_the_command_survives_kills_and_ends_with_the_page(engine: tuple[str, ...], tmp_path: Path) -> None:
    """Killed in the pilot and once more, then finished; a further call has nothing left to train."""
    path, out = study_file(tmp_path, REAL), tmp_path / "out"
    words = ("decide", path, "--out", out, "--workers", "2", "--budget", "30m", *engine)
    for runs in (2, 4):
        child = start(*words)
        while child.poll() is None and len(list(out.glob(f"real/runs/*/{store.OUTCOME}"))) < runs:
            time.sleep(0.05)
        kill(child.pid)
        child.communicate()
    said = finish(*words)
    assert f"page: {(out / 'report.html').resolve()}" in said
    assert "real declares: family lower-loss" in said
    first = {run.id: run.outcome for run in store.runs(out / "real")}
    assert len(first) >= 6
    assert {outcome.state for outcome in first.values() if outcome} == {"finished"}
    assert None not in first.values()
    finish(*words)
    assert {run.id: run.outcome for run in store.runs(out / "real")} == first
