"""Recorded spectra: what is kept is enough, names resolve, files stay whole, the shipped one can be made again."""

from pathlib import Path

import numpy as np
import pytest
import torch

from inexact_muon import Muon, lmo, measure, polar, predict
from inexact_muon_lab.tune import record, spectra
from inexact_muon_lab.tune.spectra import (
    SPECTRA,
    Layer,
    gaussian,
    judge_layers,
    labels,
    layer_of,
    load,
    log_uniform,
    positions,
    power_law,
    resolve,
    save,
    select,
)
from matrices import matrix
from pages import ROOT, load_module

METHODS = [polar.PolarExpress(k) for k in (1, 2, 5, 8)] + [polar.Jordan(5), polar.Zolotarev(2), polar.NewtonSchulz(3)]
SHIPPED = load(spectra.SHIPPED)


def momentum(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {"fc": torch.randn(12, 20, generator=generator), "conv": torch.randn(6, 2, 3, 3, generator=generator)}


@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 100, 1000, 4096])
def test_positions_are_the_ends_and_no_more_than_64(count: int) -> None:
    kept = positions(count)
    assert kept.size == min(count, kept.size) <= spectra.POINTS
    assert (kept[0], kept[-1]) == (0, count - 1)
    assert (np.diff(kept) > 0).all()
    if count <= spectra.POINTS:
        assert kept.size == count


@pytest.mark.parametrize("method", METHODS, ids=str)
@pytest.mark.parametrize("values", [gaussian(768), power_law(1000), log_uniform(300), log_uniform(50, 1e-6)], ids=len)
def test_what_is_kept_is_enough(method: polar.PolarMethod, values: np.ndarray, tmp_path: Path) -> None:
    save([Layer("a", (values.size, values.size), values)], tmp_path / "s.npz")
    (back,) = load(tmp_path / "s.npz")
    assert back.values.shape == values.shape
    exact, kept = predict(method, values), predict(method, back.values)
    assert kept.gap == pytest.approx(exact.gap, abs=0.005)
    assert kept.overshoot == pytest.approx(exact.overshoot, abs=0.005)
    assert kept.delta == pytest.approx(exact.delta, abs=0.02)
    np.testing.assert_allclose(back.values.sum(), values.sum(), rtol=0.01)


def test_short_spectra_are_kept_exactly(tmp_path: Path) -> None:
    values = np.sort(np.random.default_rng(0).random(40))[::-1]
    save([Layer("a", (40, 60), values)], tmp_path / "s.npz")
    np.testing.assert_allclose(load(tmp_path / "s.npz")[0].values, values, rtol=1e-6)


def test_rounding_is_left_out() -> None:
    m = matrix(8, 12, "rank-deficient", dtype=torch.float32)
    for scale in (1.0, 1e-30, 1e30):
        layer = spectra.spectrum_of("a", m * scale)
        np.testing.assert_allclose(layer.values / scale, [1.0, 1e-2], rtol=1e-5)
        assert layer.shape == (8, 12)


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_layers_together_are_one_point_of_the_product_ball(method: polar.PolarMethod) -> None:
    """Against matrices: dual norms add up, so does the descent; norms are maxima."""
    ball = lmo.Spectral(polar=method)
    ms = [3.0 * matrix(12, 20, "log-uniform-1e-3"), matrix(15, 9, "gaussian", seed=1)]
    answers = [ball(m) for m in ms]
    each = [measure(ball, m, d, exact=True) for m, d in zip(ms, answers, strict=True)]
    descent = -sum(float((m * d).sum()) for m, d in zip(ms, answers, strict=True))
    found = judge_layers(method, [spectra.spectrum_of(str(i), m) for i, m in enumerate(ms)])
    assert found.gap == pytest.approx(1.0 - descent / sum(float(ball.dual_norm(m)) for m in ms), abs=1e-9)
    assert found.overshoot == pytest.approx(max(i.overshoot for i in each), rel=1e-6)
    assert found.delta == pytest.approx(max(i.delta for i in each), rel=1e-6)


def test_record_and_use(tmp_path: Path) -> None:
    path = record(momentum(), tmp_path / "run.npz", label="early")
    record(momentum(1), path, label="late")
    assert labels(load(path)) == ["early", "late"]
    name, layers = resolve(f"{path}:late")
    assert name == f"{path}:late"
    assert [layer.shape for layer in layers] == [(12, 20), (6, 18)]
    expected = torch.linalg.svdvals(momentum(1)["conv"].flatten(1).double())
    np.testing.assert_allclose(layers[1].values, expected, rtol=1e-5)
    assert path.stat().st_size < 4000
    record(momentum(2), path, label="late")
    assert len(load(path)) == 4
    assert resolve(f"{path}:late")[1][0].values[0] != layers[0].values[0]
    assert [p.name for p in tmp_path.iterdir()] == ["run.npz"]


def test_record_an_optimizer(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 16), torch.nn.Linear(16, 4))
    optimizer = Muon.for_model(model, 0.02, split={"1.*": 2})
    with pytest.raises(ValueError, match="no momentum matrix to record"):
        record(optimizer, tmp_path / "o.npz")
    model(torch.randn(5, 8)).square().sum().backward()
    optimizer.step()
    layers = load(record(optimizer, tmp_path / "o.npz"))
    state = {name: optimizer.state[p] for name, p, _ in optimizer.named()}
    assert {layer.name for layer in layers} >= {"1.weight[0]", "1.weight[1]"}
    assert {layer.name.partition("[")[0] for layer in layers} == {n for n in state if "momentum_buffer" in state[n]}
    for layer in layers:
        name, _, part = layer.name.partition("[")
        whole = state[name]["momentum_buffer"]
        buffer = whole if not part else whole[8 * int(part[0]) :][:8]
        assert layer.values[0] == pytest.approx(float(torch.linalg.matrix_norm(buffer, 2)), rel=1e-5)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = record(momentum(), tmp_path / "run.npz")
    before = path.read_bytes()

    def full(file: object, **_: object) -> None:
        file.write(b"half")  # type: ignore[attr-defined]
        raise OSError("no space left on device")

    monkeypatch.setattr(np, "savez_compressed", full)
    with pytest.raises(OSError, match="no space left"):
        record(momentum(1), path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["run.npz"]


@pytest.mark.parametrize("name", labels(SHIPPED))
def test_shipped_names(name: str) -> None:
    found, layers = resolve(name)
    assert found == name
    assert [layer.name for layer in layers] == [layer.name for layer in select(SHIPPED, name)]
    for layer in layers:
        assert 1 <= layer.values.size <= min(layer.shape)
        assert (np.diff(layer.values) <= 0).all()
        assert (layer.values > 0).all()


def test_the_shipped_file_is_small_and_has_the_default() -> None:
    assert spectra.SHIPPED.stat().st_size < 16_000
    assert {"gpt-early", "gpt-mid", "gpt-late", "gpt-late/mlp", "gpt-late/attention", "cnn-late"} <= set(
        labels(SHIPPED)
    )
    assert spectra.DEFAULT in labels(SHIPPED)
    parts = select(SHIPPED, "gpt-late/mlp") + select(SHIPPED, "gpt-late/attention")
    assert {layer.name for layer in parts} == {layer.name for layer in select(SHIPPED, "gpt-late")}


def test_synthetic_names_and_arrays() -> None:
    for name, make in SPECTRA.items():
        np.testing.assert_array_equal(resolve(name, 100)[1][0].values, make(100))
        assert "100" in resolve(name, 100)[0]
    assert list(resolve([0.1, 3, 0.0])[1][0].values) == [3.0, 0.1]
    assert layer_of(torch.tensor([1.0, 2.0])).values[0] == 2.0


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".txt"])
def test_files_of_plain_values(suffix: str, tmp_path: Path) -> None:
    path, values = tmp_path / f"s{suffix}", np.array([3.0, 1.0, 0.2])
    {".npy": np.save, ".npz": lambda p, v: np.savez(p, fc=v), ".txt": np.savetxt}[suffix](path, values)
    for given in (path, str(path)):
        np.testing.assert_array_equal(resolve(given)[1][0].values, values)


def test_bad_names_and_files(tmp_path: Path) -> None:
    record(momentum(), tmp_path / "run.npz", label="early")
    record(momentum(), tmp_path / "run.npz", label="late")
    (tmp_path / "words.txt").write_text("these are words\n")
    (tmp_path / "cut.npz").write_bytes((tmp_path / "run.npz").read_bytes()[:100])
    (tmp_path / "cut.npy").write_bytes(b"\x93NUMPY")
    np.save(tmp_path / "minus.npy", np.array([1.0, -1.0]))
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object))
    for text, words in (
        ("gpt-lat", "did you mean 'gpt-late'"),
        ("gausian", "did you mean 'gaussian'"),
        (str(tmp_path / "none.npz"), "neither a file nor a name"),
        (str(tmp_path / "run.npz"), "holds early, late: name one"),
        (f"{tmp_path / 'run.npz'}:lat", "did you mean 'late'"),
        (str(tmp_path / "words.txt"), "not a file of singular values"),
        (str(tmp_path / "cut.npz"), "not a file of singular values"),
        (str(tmp_path / "cut.npy"), "not a file of singular values"),
        (str(tmp_path / "objects.npy"), "not a file of singular values"),
        (str(tmp_path / "minus.npy"), "finite, not negative"),
    ):
        with pytest.raises(ValueError, match=words) as caught:
            resolve(text)
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match=r"kept in an \.npz file"):
        record(momentum(), tmp_path / "run.txt")
    with pytest.raises(ValueError, match="fc contains a NaN"):
        record({"fc": torch.full((3, 3), torch.nan)}, tmp_path / "run.npz")


@pytest.mark.long
def test_the_shipped_file_can_be_made_again(tmp_path: Path) -> None:
    """Loosely: the text is the standard library of this Python, and sums differ by machine."""
    pytest.importorskip("sklearn", reason="the CNN's images are scikit-learn's")
    study = load_module(ROOT / "studies/record_spectra.py")
    for name in study.RUNS:
        study.train(name, tmp_path / "again.npz")
    made = load(tmp_path / "again.npz")
    assert {layer.name: layer.shape for layer in made} == {layer.name: layer.shape for layer in SHIPPED}
    for label in labels(SHIPPED):
        for method in METHODS:
            ours, theirs = judge_layers(method, select(made, label)), judge_layers(method, select(SHIPPED, label))
            assert ours.gap == pytest.approx(theirs.gap, abs=0.05), (label, method)
            assert ours.overshoot == pytest.approx(theirs.overshoot, abs=0.1), (label, method)
