"""Trainer, Lightning and Accelerate train, accumulate, clip, schedule, save and resume as a plain loop does."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from clients import (
    ACCUMULATED,
    ADAMW,
    CLIP,
    LIGHTNING_WARNS,
    MUON,
    ONLY_ADAMW,
    SCHEDULES,
    STEPS,
    Run,
    moved,
    plain,
    same,
)

CLIENTS = {"transformers": "client_trainer", "lightning": "client_lightning", "accelerate": "client_accelerate"}
pytestmark = [pytest.mark.slow, *LIGHTNING_WARNS]


@pytest.fixture(scope="module", params=CLIENTS)
def client(request: pytest.FixtureRequest) -> Any:
    pytest.importorskip(request.param, reason=f"the extra `clients` brings {request.param}")
    return import_module(CLIENTS[request.param])


@pytest.fixture(scope="module", params=SCHEDULES)
def schedule(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def folder(client: Any, schedule: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def whole(client: Any, schedule: str, folder: Path) -> Run:
    """A run without interruption, with a checkpoint on the way."""
    return client.train(MUON, schedule, folder)


def test_it_is_the_plain_loop(client: Any, whole: Run, schedule: str) -> None:
    expected = plain(MUON, schedule, whole.batches, client.CLIPS_BY_GROUP)
    assert len(whole.batches) == STEPS * ACCUMULATED
    same(whole.result["weights"], expected.result["weights"])
    same(whole.result["optimizer"]["state"], expected.result["optimizer"]["state"])
    assert whole.rates == expected.rates
    assert whole.momenta == expected.momenta
    assert whole.norms == expected.norms
    assert min(whole.norms) > CLIP  # every step is clipped


def test_a_resumed_run_is_the_uninterrupted_one(client: Any, whole: Run, schedule: str, folder: Path) -> None:
    resumed = client.train(MUON, schedule, folder, resume=True)
    assert len(resumed.rates) == STEPS - client.CUT
    assert resumed.rates == whole.rates[client.CUT :]
    assert resumed.momenta == whole.momenta[client.CUT :]
    assert resumed.norms == whole.norms[client.CUT :]
    same(resumed.result, whole.result)


def test_it_is_what_the_client_does_with_adamw(client: Any, whole: Run, schedule: str, tmp_path: Path) -> None:
    torchs = client.train(ADAMW, schedule, tmp_path / "torch")
    ours = client.train(ONLY_ADAMW, schedule, tmp_path / "ours")
    assert [rates[0] for rates in ours.rates] == [rates[0] for rates in torchs.rates]
    assert [momenta[0] for momenta in ours.momenta] == [momenta[0] for momenta in torchs.momenta]
    assert ours.norms == pytest.approx(torchs.norms, rel=1e-4)
    for name, weight in torchs.result["weights"].items():
        assert (weight - ours.result["weights"][name]).abs().max() < 1e-5, name
    assert moved(torchs.model) == moved(ours.model) == moved(whole.model)
    assert len(torchs.rates) == len(ours.rates) == len(whole.rates) == STEPS


def test_one_cycle_reaches_the_momentum_of_every_group(whole: Run, schedule: str) -> None:
    if schedule != "one-cycle":
        assert all(momenta == whole.momenta[0] for momenta in whole.momenta)
        return
    for momenta in zip(*whole.momenta, strict=True):
        assert momenta[0] == pytest.approx(0.95)
        assert min(momenta) == pytest.approx(0.85, abs=0.01)
        assert momenta[-1] > 0.9
