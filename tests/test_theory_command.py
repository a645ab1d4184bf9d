"""`inexact-muon theory`: lists, evaluates, draws, and says what is wrong in one sentence."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from commands import refused, said
from inexact_muon_lab import theory
from inexact_muon_lab.cli import statements


def test_list() -> None:
    code, out, _ = said("theory", "list")
    assert code == 0
    for s in theory.BOUNDS.values():
        assert s.name in out
    assert said("theory")[1] == out


@pytest.mark.parametrize("name", theory.BOUNDS)
def test_every_statement_can_be_looked_at(name: str) -> None:
    code, out, err = said("theory", name)
    assert (code, err) == (0, "")
    assert "(assumed)" in out
    assert theory.BOUNDS[name].source in out


def test_values_are_used() -> None:
    settings = ("--set", "delta=0.3", "--set", "L=2", "--set", "K=50")
    code, out, _ = said("theory", "deterministic_optimal", *settings)
    gamma, bound = theory.deterministic_optimal(1.0, 2.0, 50, 0.3)
    assert code == 0
    assert f"{gamma:.6g}" in out
    assert f"{bound:.6g}" in out
    assert out.count("(assumed)") == 1
    _, out, _ = said("theory", "layerwise-iterations", "--set", "deltas=0.1,0.5,0.2")
    assert f"{theory.layerwise_iterations(1.0, 0.1, [0.1, 0.5, 0.2]):.6g}" in out


EXTREMES = ("1e-320", "1e-200", "1e15", "1e200", "inf", "nan", "-1")


@pytest.mark.parametrize("name", theory.BOUNDS)
def test_numbers_out_of_range_are_sentences(name: str) -> None:
    """The command shows a result, or raises what `main` prints as one sentence, and nothing else."""
    shown, sentences = 0, []
    for parameter in statements.parameters(theory.BOUNDS[name]):
        if isinstance(statements.EXAMPLE[parameter], str):
            continue
        for value in EXTREMES:
            try:
                statements.show(name, (f"{parameter}={value}",), None, Console(file=io.StringIO(), width=120))
                shown += 1
            except ValueError as error:
                sentences.append(str(error))
    assert min(shown, len(sentences)) > 0
    assert not any("\n" in sentence for sentence in sentences)


@pytest.mark.parametrize("value", EXTREMES)
def test_so_says_the_command(value: str) -> None:
    code, _, err = said("theory", "stochastic-iterations", "--set", f"eps={value}")
    assert code == (2 if err else 0)
    assert err.count("\n") == (1 if err else 0), err


def test_eps_whose_power_vanishes() -> None:
    code, _, err = said("theory", "stochastic-iterations", "--set", "eps=1e-200")
    assert code == 2
    assert "is outside the range of floating point numbers at D0=1" in err
    assert "eps=1e-200" in err


def test_clipping_is_said() -> None:
    assert "clipped to 1" in said("theory", "stochastic-optimal", "--set", "K=1")[1]
    assert "clipped to 1" not in said("theory", "stochastic-optimal")[1]


@pytest.mark.parametrize("name", ["stochastic-optimal", "measured-deterministic-bound", "layerwise-bound", "rho"])
def test_plot(name: str, tmp_path: Path) -> None:
    pytest.importorskip("altair", reason="the picture needs the extra `lab`")
    path = tmp_path / "new" / f"{name}.json"
    code, out, err = said("theory", name, "--plot", str(path))
    if name == "rho":
        assert code == 2
        assert "does not depend on delta" in err
        return
    assert code == 0
    assert str(path) in out
    drawn = json.dumps(json.loads(path.read_text()))
    assert "paper" in drawn
    assert "two numbers" in drawn


def test_plot_as_svg(tmp_path: Path) -> None:
    pytest.importorskip("altair", reason="the picture needs the extra `lab`")
    code, _, _ = said("theory", "stochastic-bound", "--plot", str(tmp_path / "b.svg"))
    assert code == 0
    assert (tmp_path / "b.svg").read_text().startswith("<svg")


def test_curves_are_the_statements() -> None:
    rows = statements.curves(theory.BOUNDS["stochastic-bound"], {**statements.EXAMPLE, "K": 77.0})
    at = {r["curve"]: r["value"] for r in rows if abs(r["delta"] - 0.5) < 1e-9}
    assert at["paper"] == theory.stochastic_bound(1.0, 1.0, 77.0, 1.0, 0.01, 0.1, 0.5)
    assert at["two numbers (delta, 1 + delta)"] == theory.measured_stochastic_bound(1, 1, 77.0, 1, 0.01, 0.1, 0.5, 1.5)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("stochastic-optimum",), "did you mean 'stochastic-optimal'"),
        (("deterministic-bound", "--set", "detla=0.1"), "did you mean 'delta'"),
        (("deterministic-bound", "--set", "delta"), "--set takes name=value"),
        (("deterministic-bound", "--set", "delta=small"), "delta must be a number"),
        (("deterministic-bound", "--set", "delta=0.1,0.2"), "delta is one number"),
        (("deterministic-bound", "--set", "delta=1"), "so no bound can hold"),
        (("measured-deterministic-bound", "--set", "gap=1"), "not a descent direction"),
        (("deterministic-bound", "--plot", "bound.txt"), "--plot writes .svg"),
        (("momentum-errors", "--plot", "errors.svg"), "gives a sequence"),
    ],
)
def test_bad_input_is_one_sentence(arguments: tuple[str, ...], words: str) -> None:
    assert words in refused("theory", *arguments)
