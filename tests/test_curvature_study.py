"""The study of curvature: what is measured, what is fitted to it, and that page and figures follow from it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("altair", reason="the study needs the extra `lab`")

from inexact_muon.views import Split
from inexact_muon_lab import theory
from inexact_muon_lab.problems import Task
from pages import ROOT, load_module

FIGURES, STUDY, PAGE = ROOT / "docs/figures", ROOT / "studies/curvature", ROOT / "docs/curvature.md"
table = load_module(STUDY / "table.py")
measure = load_module(STUDY / "measure.py")
exponents, best_power = table.exponents, table.best_power


def committed() -> dict[str, Any]:
    return json.loads((FIGURES / "curvature.json").read_text())


@pytest.mark.data
def test_page_table_and_picture_are_those_of_the_committed_results(tmp_path: Path) -> None:
    found, page = committed(), PAGE.read_text()
    assert table.markdown(found) == (FIGURES / "curvature.md").read_text()
    assert table.written(page, found) == page
    table.figure(found, table.MODELS).save(tmp_path / "curvature.svg")
    assert (tmp_path / "curvature.svg").read_text() == (FIGURES / "curvature.svg").read_text()


@pytest.mark.slow
@pytest.mark.data
def test_results_are_those_of_the_measurements_and_the_packed_runs() -> None:
    again, kept = table.made(), committed()
    assert again["runs"] == kept["runs"]
    assert again["seconds"] == kept["seconds"]
    assert len(again["rows"]) == len(kept["rows"])
    for new, old in zip(again["rows"], kept["rows"], strict=True):
        for key, value in old.items():
            if not isinstance(value, dict):
                assert new[key] == value
                continue
            assert new[key]["mean"] == pytest.approx(value["mean"], abs=2e-4)
            for ends in ("seeds", "directions"):
                assert new[key][ends] == pytest.approx(value[ends], abs=1e-3), (key, ends)


@pytest.mark.data
def test_two_models_two_batches_and_every_kind_of_layer() -> None:
    rows = committed()["rows"]
    settings = {(row["model"], row["batch"], row["input"]) for row in rows}
    assert {(m, b) for m, b, _ in settings} == {("gpt", 16), ("gpt", 64), ("cnn", 50), ("cnn", 200)}
    assert {i for _, _, i in settings} == {"momentum", "gradient"}
    for model, batch, given in settings:
        kinds = {r["kind"] for r in rows if (r["model"], r["batch"], r["input"]) == (model, batch, given)}
        assert kinds == ({"q", "k", "v", "out", "up", "down", "all"} if model == "gpt" else {"first", "second", "all"})
    assert all(row["n"] >= 3 and row["q"]["seeds"] and row["q"]["directions"] for row in rows)


def pooled(model: str, batch: int, given: str, step: Any = "all") -> dict[str, Any]:
    wanted = {"model": model, "batch": batch, "input": given, "kind": "all", "step": step}
    return next(row for row in committed()["rows"] if wanted.items() <= row.items())


def linear() -> tuple[Any, nn.Module]:
    """Two matrices in one weight, and a loss that is not quadratic in it."""
    torch.manual_seed(0)
    model = nn.Linear(5, 6, bias=False)
    batches = [(torch.randn(40, 5), torch.randn(40, 6)) for _ in range(8)]

    def loss(net: nn.Module, batch: Any) -> torch.Tensor:
        return (net(batch[0]).tanh() - batch[1]).square().mean()

    run = SimpleNamespace(examples=120, few=40, many=80, unused=0)
    task = Task(model, lambda step: batches[step], loss)
    hidden = [measure.Hidden("weight", Split(2), model.weight)]
    return measure.Point(run, task, model, hidden), model


def test_slope_and_curvature_are_those_of_the_whole_hessian() -> None:
    point, model = linear()
    every = measure.examples(point.task, 0, 320)

    def at(part: slice) -> Any:
        batch = tuple(x[part] for x in every)
        return lambda w: (torch.nn.functional.linear(batch[0], w).tanh() - batch[1]).square().mean()

    weight = model.weight.detach()
    gradient = torch.autograd.functional.jacobian(at(slice(120, 240)), weight)
    few, many = (torch.autograd.functional.hessian(at(s), weight) for s in (slice(240, 280), slice(240, 320)))
    inputs = [torch.randn(3, 5, dtype=torch.float64) for _ in range(2)]
    found = point.measured({"weight": inputs})
    for index, row in enumerate(found["matrices"]):
        u, s, vh = torch.linalg.svd(inputs[index], full_matrices=False)
        assert row["s"] == pytest.approx((s / s[0]).tolist(), rel=1e-3)
        assert (row["stand_for"], row["length"]) == ([1, 1, 1], 1.0)
        for i in range(3):
            d = torch.zeros(6, 5)
            d[3 * index : 3 * index + 3] = torch.outer(u[:, i], vh[i]).float()
            assert row["slope"][i] == pytest.approx(float((gradient * d).sum()), rel=1e-3, abs=1e-6)
            bent = torch.einsum("ij,ijkl,kl->", d, few, d)
            assert row["curvature"][i] == pytest.approx(float(bent), rel=1e-3, abs=1e-6)
    for k, p in enumerate(measure.POWERS):
        parts = [torch.linalg.svd(m, full_matrices=False) for m in inputs]
        d = torch.cat([(u * (s / s[0]) ** p) @ vh for u, s, vh in parts]).float()
        assert found["power_slope"][k] == pytest.approx(float((gradient * d).sum()), rel=1e-3)
        bent = torch.einsum("ij,ijkl,kl->", d, many, d)
        assert found["power_curvature"][k] == pytest.approx(float(bent), rel=1e-3)


@pytest.mark.parametrize("count", [4, 9, 16, 96, 768])
def test_the_directions_stand_for_all(count: int) -> None:
    parts = measure.strata(count)
    assert [i for part in parts for i in part] == list(range(count))
    assert len(parts) <= measure.DIRECTIONS
    assert [len(part) for part in parts[:3]] == [1, 1, 1]


def matrices(r: float, q: float, noise: float = 0.0, count: int = 6) -> list[dict[str, Any]]:
    """Of known exponents, with constants of their own; noise is relative to the largest slope and curvature."""
    rng = np.random.default_rng(3)
    made = []
    for k in range(count):
        s = np.sort(np.exp(-4.0 * rng.random(12)))[::-1] / 1.0
        s = s / s[0]
        slope, curvature = (c * (s**t + noise * rng.normal(size=12)) for c, t in ((0.1 + k, r), (2.0 + k, q)))
        fields = {"s": s, "stand_for": rng.integers(1, 9, 12), "slope": slope, "curvature": curvature}
        made.append({"kind": "up", **{name: values.tolist() for name, values in fields.items()}})
    return made


@pytest.mark.parametrize(("r", "q"), [(1.0, 1.0), (1.4, 1.8), (0.9, 0.3)])
def test_exponents_are_found(r: float, q: float) -> None:
    exact, noisy = matrices(r, q), matrices(r, q, 0.05, 60)
    assert exponents.exponent(exact, "slope") == pytest.approx(r, abs=1e-8)
    assert exponents.exponent(exact, "curvature") == pytest.approx(q, abs=1e-8)
    assert min(min(m["slope"]) for m in noisy) < 0.0, "a logarithm of them would not do"
    assert exponents.exponent(noisy, "slope") == pytest.approx(r, abs=0.1)
    rs, qs = exponents.resampled(noisy, np.random.default_rng(0))
    assert np.quantile(rs, 0.025) < r < np.quantile(rs, 0.975)
    assert np.quantile(qs, 0.025) < q < np.quantile(qs, 0.975)


def test_a_matrix_without_slope_is_left_out() -> None:
    some = matrices(1.4, 1.8)
    against = {**some[0], "slope": [-x for x in some[0]["slope"]]}
    assert exponents.exponent([*some, against], "slope") == pytest.approx(1.4, abs=1e-8)
    assert np.isnan(exponents.exponent([against], "slope"))


@pytest.mark.parametrize(("r", "q"), [(1.2, 1.4), (1.3, 1.3), (1.0, 1.45)])
def test_the_measured_top_is_that_of_theory(r: float, q: float) -> None:
    s = np.exp(-np.linspace(0.0, 4.0, 30))
    powers = measure.POWERS
    slope = np.array([(s ** (p + r)).sum() for p in powers])
    curvature = np.array([(s ** (2 * p + q)).sum() for p in powers])
    assert exponents.top(powers, slope, curvature) == pytest.approx(theory.power_optimal(r, q), abs=0.01)
    assert np.isnan(exponents.top(powers, slope, curvature - curvature.max()))
    assert exponents.top(powers, (s[:, None] ** (np.array(powers) + 3.0)).sum(0), curvature) == powers[-1]


RATES = [(lr, 0.0) for lr in (0.02, 0.04, 0.08)]


def losses(best: float, spread: float = 0.001, seeds: int = 6) -> Any:
    """Parabolas in the power, and in log lr with another best lr for each power."""
    rng = np.random.default_rng(1)
    return {
        p: {
            rates: {
                seed: 1.0 + 0.3 * (p - best) ** 2 + 0.1 * np.log(rates[0] / 0.04) ** 2 + spread * rng.normal()
                for seed in range(seeds)
            }
            for rates in RATES
        }
        for p in (-0.4, -0.2, 0.0, 0.2)
    }


@pytest.mark.parametrize("best", [-0.4, -0.2, 0.0])
def test_the_best_power_of_runs_is_found(best: float) -> None:
    found = best_power.best(losses(best))
    assert (found.best, found.alike, found.at_end) == (best, [best], best == -0.4)
    assert found.rate_at_end == []
    assert found.seeds == 6
    assert len(best_power.best(losses(best, spread=0.5)).alike) > 1


def test_no_seed_chooses_the_rates_at_which_it_is_judged() -> None:
    made = losses(0.0)
    made[0.2][(0.02, 0.0)][3] = 0.0  # seed 3 alone would take this
    assert best_power.best(made).best == 0.0


@pytest.mark.parametrize(
    ("polar", "family", "power"),
    [
        ("zolotarev(poles=3)", "zolotarev(poles=3)", 0.0),
        ("zolotarev(poles=3, lower=0.002, power=-0.2)", "zolotarev(poles=3)", -0.2),
        ("shaped(factors=(power(p=0.1),))", "shaped(factors=())", 0.1),
        ("shaped(factors=(power(p=0.1),))", "zolotarev(poles=3)", None),
        ("zolotarev(poles=2, lower=0.003, power=-0.1)", "zolotarev(poles=3)", None),
        ("shaped(factors=(ripple(amplitude=0.3, frequency=3.0),))", "shaped(factors=())", None),
    ],
)
def test_powers_are_read_from_oracles(polar: str, family: str, power: float | None) -> None:
    assert best_power.power(polar, family) == power
