"""`inexact-muon transfer` and `inexact-muon delta --checkpoint`: what they print is what the library says."""

import json
from pathlib import Path

import pytest
import torch

from commands import refused, said
from inexact_muon import Muon, advise, polar, predict, transfer
from inexact_muon_lab.checkpoints.momenta import read
from inexact_muon_lab.tune import advice, record, spectra
from inexact_muon_lab.tune.rules import DEFAULT, RULES
from test_tune_checkpoints import stepped

VALUES = ("--lr", ".05", "--momentum", ".95", "--from", "polar-express:5", "--to", "polar-express:2")


@pytest.mark.parametrize("rule", [None, *RULES])
def test_transfer_shows_every_rule_and_marks_one(rule: str | None) -> None:
    code, out, err = said("transfer", *VALUES, *(("--rule", rule) if rule else ()))
    assert (code, err) == (0, "")
    for name, row in RULES.items():
        found = transfer(0.05, 0.95, "polar-express:5", "polar-express:2", name)
        (line,) = [line for line in out.splitlines() if f" {name} " in line and row.lr in line]
        for value in (found.lr, found.momentum, found.alpha, found.lr_factor, found.alpha_factor):
            assert f"{value:.4g}" in line
        assert ("-> " in line) == (name == (rule or DEFAULT))
        assert row.source in line
    assert transfer(0.05, 0.95, "polar-express:5", "polar-express:2", rule or DEFAULT).why in out
    assert "judged on gpt-late" in out
    assert "descent came closer to the best lr than keeping it, no other rule did" in out


def test_transfer_on_a_run_of_ones_own(tmp_path: Path) -> None:
    path = record(stepped("ours")[1], tmp_path / "run.npz", label="late")
    code, out, _ = said("transfer", *VALUES, "--spectrum", f"{path}:late")
    found = transfer(0.05, 0.95, "polar-express:5", "polar-express:2", spectrum=f"{path}:late")
    assert code == 0
    assert f"{found.lr:.4g}" in out
    assert "run.npz:late" in out


def test_clipping_is_shown() -> None:
    arguments = ("--lr", "1", "--momentum", "0", "--from", "exact-svd", "--to", "polar-express:2")
    assert "cut to 1" in said("transfer", *arguments)[1]


def test_delta_of_a_recorded_name() -> None:
    code, out, _ = said("delta", "polar-express:3", "--spectrum", "gpt-late/mlp")
    layers = spectra.resolve("gpt-late/mlp")[1]
    assert code == 0
    for layer in layers:
        assert f"{predict(polar.PolarExpress(3), layer.values).gap:.4f}" in out
    assert f"{spectra.judge_layers(polar.PolarExpress(3), layers).gap:.4f}" in out
    assert "together" in out


@pytest.mark.parametrize("name", ["ours", "torch", "keller"])
@pytest.mark.parametrize("oracle", [None, "you:6"])
def test_delta_of_a_checkpoint(name: str, oracle: str | None, tmp_path: Path) -> None:
    optimizer = stepped(name)[1]
    torch.save({"optimizer": optimizer.state_dict()}, tmp_path / "c.pt")
    code, out, err = said("delta", *((oracle,) if oracle else ()), "--checkpoint", str(tmp_path / "c.pt"))
    assert (code, err) == (0, "")
    found = advise(momenta_of(optimizer), oracle)
    assert tuple(out.splitlines()[:3]) == found.lines
    for kind in found.kinds:
        (line,) = [line for line in out.splitlines() if line.startswith(f"│ {kind.name} ")]
        if kind.in_use is not None:
            for value in (kind.in_use.gap, kind.in_use.overshoot, kind.in_use.delta):
                assert f"{value:.4f}" in line
            assert f"{kind.in_use.lifted:.3f}" in line
    for tried in found.candidates:
        assert f"│ {advice.text(tried.oracle)} " in out
    assert ("not named by the optimizer" in out) == (name == "keller" and oracle is None)


def momenta_of(optimizer: torch.optim.Optimizer) -> dict[str, object]:
    """The state, without the class, as in a file."""
    return {"optimizer": optimizer.state_dict()}


@pytest.mark.parametrize("name", ["ours", "keller"])
@pytest.mark.parametrize("oracle", [None, "you:6"])
def test_delta_as_json(name: str, oracle: str | None, tmp_path: Path) -> None:
    optimizer = stepped(name)[1]
    torch.save(optimizer.state_dict(), tmp_path / "c.pt")
    code, out, err = said("delta", *((oracle,) if oracle else ()), "--checkpoint", str(tmp_path / "c.pt"), "--json")
    assert (code, err) == (0, "")
    found = advise(momenta_of(optimizer), oracle)
    reports = found.reports
    assert tuple(json.loads(out)["answer"]["lines"]) == found.lines
    assert json.loads(out)["answer"]["polar"] == advice.text(found.oracle)
    for shown, r in zip(json.loads(out)["layers"], reports, strict=True):
        assert (shown["name"], tuple(shown["shape"])) == (r.layer.name, r.layer.shape)
        assert shown["singular_values"] == r.layer.values.tolist()
        assert ("oracle" in shown) == (r.in_use is not None)
        if r.in_use is not None:
            assert shown["oracle"] == str(r.oracle)
            assert (shown["lifted"], shown["gap"]) == (r.in_use.lifted, r.in_use.gap)


def test_delta_of_a_recorded_name_as_json() -> None:
    code, out, _ = said("delta", "jordan:5", "--spectrum", "gpt-late/mlp", "--json")
    layers = json.loads(out)["layers"]
    assert code == 0
    assert [layer["name"] for layer in layers] == [layer.name for layer in spectra.resolve("gpt-late/mlp")[1]]
    assert layers[0]["overshoot"] == predict(polar.Jordan(5), layers[0]["singular_values"]).overshoot


def test_what_is_good_enough_is_kept(tmp_path: Path) -> None:
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.zeros(32, 64))
    weight.grad = torch.randn(32, 64)
    optimizer = Muon([weight])
    optimizer.step()
    torch.save(optimizer.state_dict(), tmp_path / "c.pt")
    best = advise(optimizer).oracle
    assert best is not None
    code, out, _ = said("delta", advice.text(best), "--checkpoint", str(tmp_path / "c.pt"))
    assert code == 0
    assert out.startswith("Exact enough: ")
    assert "Keep it: no candidate that is exact enough costs clearly less." in out
    assert "Keep it" not in said("delta", "exact-svd", "--checkpoint", str(tmp_path / "c.pt"))[1]


def test_transfer_uses_the_spectra_of_a_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "c.pt"
    torch.save(stepped("ours")[1].state_dict(), path)
    code, out, _ = said("transfer", *VALUES, "--checkpoint", str(path))
    layers = [spectra.spectrum_of(m.name, m.matrix) for m in read(path)]
    source, target = (spectra.judge_layers(polar.PolarExpress(k), layers) for k in (5, 2))
    assert code == 0
    assert f"{0.05 * (1 - source.gap) / (1 - target.gap):.4g}" in out
    assert "judged on" in out
    assert "c.pt" in out
    assert said("transfer", *VALUES, "--checkpoint", str(path), "--spectrum", "gpt-late")[0] == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("delta",), "name an oracle"),
        (("delta", "--checkpoint", "nowhere.pt"), "there is no checkpoint nowhere.pt"),
        (("delta", "you:6", "--spectrum", "gpt-lat"), "did you mean 'gpt-late'"),
        (("transfer", *VALUES, "--rule", "papr"), "did you mean 'paper'"),
        (("transfer", *VALUES, "--spectrum", "cnn-lat"), "did you mean 'cnn-late'"),
        (("transfer", *VALUES, "--lr", "-1"), "lr must be positive"),
        (("transfer", *VALUES, "--momentum", "1"), "momentum must lie in"),
        (("transfer", *VALUES, "--to", "jordn:5"), "did you mean 'jordan'"),
    ],
)
def test_bad_input_is_one_sentence(arguments: tuple[str, ...], words: str) -> None:
    assert words in refused(*arguments)


@pytest.mark.parametrize("command", ["transfer", "delta"])
def test_help_has_an_example(command: str) -> None:
    code, out, _ = said(command, "--help")
    assert code == 0
    assert f"inexact-muon {command}" in out
    assert "xample" in out
