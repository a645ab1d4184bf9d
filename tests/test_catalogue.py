"""The table of all oracles, and the commands that print it."""

import json
from pathlib import Path

import numpy as np
import pytest

from commands import refused, said
from inexact_muon import polar, predict
from inexact_muon_lab import cli
from inexact_muon_lab.cli import catalogue
from inexact_muon_lab.tune.spectra import SPECTRA, gaussian, log_uniform, power_law


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    monkeypatch.setattr("sys.argv", ["inexact-muon", *arguments])
    code = 0
    try:
        cli.main()
    except SystemExit as stop:
        code = int(stop.code or 0)
    out, err = capsys.readouterr()
    return code, out, err


def test_every_family_has_rows() -> None:
    assert {m.name for m in catalogue.METHODS} | {"polynomial", "auto", "shaped"} == set(polar.POLARS)


def test_rows_are_computed() -> None:
    row = catalogue.row(polar.PolarExpress(5))
    assert row.delta["1e-03"] == polar.PolarExpress(5).error_bound(1e-3)
    assert row.gap["power-law"] == predict(polar.PolarExpress(5), power_law(1024)).gap
    assert row.square == 15.0
    assert catalogue.row(polar.ExactSVD()).delta["1e-04"] == 0.0
    assert len(catalogue.cells(row)) == len(catalogue.header())


def test_known_values_of_the_table() -> None:
    """2.3 of the digest."""
    for method, lower, delta in (
        (polar.Jordan(5), 1e-3, 0.5295),
        (polar.You(5), 1e-2, 0.0318),
        (polar.You(6), 1e-3, 0.1337),
        (polar.Cesista(5), 1e-3, 0.553),
        (polar.NewtonSchulz(5), 1e-2, 0.7715),
        (polar.Cans(5), 1e-3, 0.1134),
    ):
        assert method.error_bound(lower) == pytest.approx(delta, abs=6e-5)


def test_demo_writes_the_table(tmp_path: Path) -> None:
    pytest.importorskip("altair", reason="the picture needs the extra `lab`")
    code, out, _ = said("demo", "--oracles", "--out", str(tmp_path))
    assert code == 0
    assert "oracles.md" in out
    records = json.loads((tmp_path / "oracles.json").read_text())
    assert [r["method"] for r in records] == [str(m) for m in catalogue.METHODS]
    assert (tmp_path / "oracles.md").read_text().count("\n") == len(catalogue.METHODS) + 2


def test_delta_of_a_named_spectrum() -> None:
    code, out, _ = said("delta", "you:6", "--shape", "64x96", "--spectrum", "power-law")
    expected = predict(polar.You(6), power_law(64))
    assert code == 0
    assert f"{expected.gap:.4f}" in out
    assert f"{polar.You(6).flops(64, 96):.4g}" in out


@pytest.mark.parametrize("suffix", [".npy", ".txt"])
def test_delta_of_a_file(suffix: str, tmp_path: Path) -> None:
    values, path = np.array([3.0, 1.0, 0.2]), tmp_path / f"spectrum{suffix}"
    np.save(path, values) if suffix == ".npy" else np.savetxt(path, values)
    code, out, _ = said("delta", "jordan:5", "--spectrum", str(path))
    assert code == 0
    assert f"{predict(polar.Jordan(5), values).delta:.4f}" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("delta", "polar-expres:5"), "did you mean 'polar-express'"),
        (("delta", "jordan:5", "--shape", "768"), "shape must look like 768x3072"),
        (("delta", "jordan:5", "--spectrum", "gausian"), "did you mean 'gaussian'"),
        (("delta", "jordan:5", "--checkpoint", "nowhere.pt"), "nowhere.pt"),
    ],
)
def test_bad_input_is_one_sentence(arguments: tuple[str, ...], words: str) -> None:
    assert words in refused(*arguments)


@pytest.mark.parametrize("name", SPECTRA)
def test_named_spectra(name: str) -> None:
    for n in (1, 2, 64, 1000):
        s = SPECTRA[name](n)
        assert s.shape == (n,)
        assert (s > 0).all()
        assert (np.diff(s) <= 0).all()
        assert s[0] <= 1.0
    assert log_uniform(5, 1e-4)[-1] == pytest.approx(1e-4)


def test_gaussian_spectrum_is_that_of_a_gaussian_matrix() -> None:
    generator = np.random.default_rng(0)
    sample = np.linalg.svd(generator.standard_normal((400, 400)), compute_uv=False) / 2 / 400**0.5
    np.testing.assert_allclose(gaussian(400), sample, atol=0.03)
