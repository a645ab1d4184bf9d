"""Momentum from saved optimizers: every kind of file gives the same matrices, wrong files one sentence."""

import dataclasses
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from inexact_muon import Muon, Scion, lmo, measure, polar, predict
from inexact_muon.optim.sources import translated
from inexact_muon.polar import Auto
from inexact_muon.schedules.published import JORDAN
from inexact_muon_lab.checkpoints.momenta import Momentum, cut, momenta, read
from inexact_muon_lab.tune import advice, spectra
from torch_features import HAS_MUON, NO_MUON

NAMES = ("0.weight", "1.weight")


class Keller(torch.optim.Optimizer):
    """The state that KellerJordan's Muon writes: an average in momentum_buffer and groups without an oracle."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.02, "weight_decay": 0.0, "momentum": 0.95})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                buffer = self.state[p].setdefault("momentum_buffer", torch.zeros_like(p))
                buffer.lerp_(p.grad, 1.0 - group["momentum"])


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 16, bias=False), nn.Linear(16, 16, bias=False))


MAKERS = {
    "ours": lambda m: Muon(m.named_parameters(), polar="polar-express:4"),
    "for_model": lambda m: Muon.for_model(m, 0.02, polar="polar-express:4", rules=[("*", "lmo")]),
    "torch": lambda m: torch.optim.Muon(m.parameters()),
    "torch, 3 steps": lambda m: torch.optim.Muon(m.parameters(), ns_steps=3, ns_coefficients=(2.0, -1.5, 0.5)),
    "keller": lambda m: Keller(m.parameters()),
}
ORACLES = {
    "ours": polar.PolarExpress(4),
    "for_model": polar.PolarExpress(4),
    "torch": polar.Jordan(5),
    "torch, 3 steps": polar.Polynomial(((2.0, -1.5, 0.5),) * 3),
    "keller": None,
}


def stepped(name: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    if name.startswith("torch") and not HAS_MUON:
        pytest.skip(NO_MUON)
    net = model()
    optimizer = MAKERS[name](net)
    for _ in range(3):
        optimizer.zero_grad()
        net(torch.randn(5, 10)).square().sum().backward()
        optimizer.step()
    return net, optimizer


def buffers(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [optimizer.state[p]["momentum_buffer"] for group in optimizer.param_groups for p in group["params"]]


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize(
    "wrap",
    [
        lambda s, _: s,
        lambda s, net: {"model": net.state_dict(), "optimizer": s, "step": 3},
        lambda s, net: {"state_dict": net.state_dict(), "optimizer_states": [s], "epoch": 1},
        lambda s, _: {"train": {"optimizer_state_dict": s}},
        lambda s, _: {"optimizers": [s, torch.optim.AdamW(model().parameters()).state_dict()]},
    ],
    ids=["bare", "nested", "lightning", "deep", "with AdamW"],
)
def test_every_optimizer_at_any_depth(name: str, wrap: Any, tmp_path: Path) -> None:
    net, optimizer = stepped(name)
    torch.save(wrap(optimizer.state_dict(), net), tmp_path / "c.pt")
    found = read(tmp_path / "c.pt")
    assert len(found) == 2
    for entry, buffer in zip(found, buffers(optimizer), strict=True):
        torch.testing.assert_close(entry.matrix, buffer, rtol=0.0, atol=0.0)
        assert entry.oracle == ORACLES[name]
    if name in ("ours", "for_model"):
        assert sorted(m.name for m in found) == sorted(NAMES)


def test_two_muons_keep_their_names_apart() -> None:
    states = [stepped("keller")[1].state_dict() for _ in range(2)]
    assert [m.name for m in momenta({"optimizers": states})] == [
        f"optimizers.{i}.{k}" for i in range(2) for k in range(2)
    ]


def test_safetensors(tmp_path: Path) -> None:
    save_file = pytest.importorskip("safetensors.torch", reason="needs the extra `safetensors`").save_file
    net, optimizer = stepped("ours")
    named = {f"optimizer.state.{n}.momentum_buffer": b for n, b in zip(NAMES, buffers(optimizer), strict=True)}
    save_file({**named, **{f"model.{k}": v for k, v in net.state_dict().items()}}, tmp_path / "c.safetensors")
    found = read(tmp_path / "c.safetensors")
    assert [m.name for m in found] == list(NAMES)
    for entry, buffer in zip(found, buffers(optimizer), strict=True):
        torch.testing.assert_close(entry.matrix, buffer, rtol=0.0, atol=0.0)
    save_file({"model.0": torch.ones(3, 3)}, tmp_path / "weights.safetensors")
    (tmp_path / "cut.safetensors").write_bytes(b"half")
    for file, words in (("weights", "has no momentum matrix"), ("cut", "not a complete safetensors file")):
        with pytest.raises(ValueError, match=words):
            read(tmp_path / f"{file}.safetensors")


def test_without_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "c.safetensors").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(ValueError, match=r"pip install 'inexact-muon\[safetensors\]'"):
        read(tmp_path / "c.safetensors")


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")  # torch 2.6 in its own save
@pytest.mark.parametrize("name", MAKERS)
def test_a_folder_of_torch_distributed(name: str, tmp_path: Path) -> None:
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.state_dict import get_state_dict

    net, optimizer = stepped(name)
    before = [b.clone() for b in buffers(optimizer)]
    weights, state = get_state_dict(net, optimizer)
    with pytest.warns(UserWarning, match="single process"):
        checkpoint.save({"model": weights, "optim": state}, checkpoint_id=tmp_path / "dcp")
    found = {m.name: m.matrix for m in read(tmp_path / "dcp")}
    assert found.keys() == set(NAMES)
    order = [n for n, p in net.named_parameters() for group in optimizer.param_groups if p in set(group["params"])]
    for key, buffer in zip(order, before, strict=True):
        torch.testing.assert_close(found[key], buffer, rtol=0.0, atol=0.0)
    for part in (tmp_path / "dcp").glob("*.distcp"):
        part.unlink()
    with pytest.raises(ValueError, match="parts of it may be missing"):
        read(tmp_path / "dcp")
    (tmp_path / "dcp" / ".metadata").write_bytes(b"half")
    with pytest.raises(ValueError, match="may be truncated"):
        read(tmp_path / "dcp")


@pytest.mark.parametrize("content", [b"", b"steps = 3\n", b"(", b"c", bytes(range(256)), b"\x80\x02."], ids=repr)
def test_anything_else_is_refused_in_a_sentence(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.pt").write_bytes(content)
    with pytest.raises(ValueError, match=r"x\.pt is not a"):
        read(tmp_path / "x.pt")


def test_kernels_of_foreign_optimizers_are_flattened() -> None:
    x = torch.randn(6, 2, 3, 3)
    assert torch.equal(cut(x)[0], x.flatten(1))
    assert len(cut(torch.randn(5, 4, 3))) == 5


def test_every_view_of_a_model_is_read(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(16, 12), nn.Linear(12, 3))
    optimizer = Muon.for_model(net, 0.02, split={"2.*": 3})
    net(torch.randn(2, 1, 4, 4)).square().sum().backward()
    optimizer.step()
    shapes = {m.name: tuple(m.matrix.shape) for m in momenta(optimizer)}
    expected = {}
    for name, p, group in optimizer.named():
        if group["algorithm"] == "lmo":
            cuts = optimizer.view(group).shapes(p.shape)
            expected |= {name if len(cuts) == 1 else f"{name}[{i}]": s for i, s in enumerate(cuts)}
    assert shapes == expected
    assert any("[2]" in name for name in shapes)


def test_what_is_left_out() -> None:
    """Vectors, other balls, and buffers that are still zero."""
    net = nn.Linear(4, 3)
    optimizer = Scion([{"params": [net.weight], "ball": "spectral"}, {"params": [net.bias], "ball": "sign"}], 0.1, 0.9)
    net(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    assert len(momenta(optimizer)) == 1
    assert momenta({"a.momentum_buffer": torch.zeros(3, 3), "b.momentum_buffer": torch.ones(3)}) == []
    sign = Scion([net.weight], 0.1, 0.9, ball=lmo.Sign())
    sign.step()
    assert momenta(sign) == []


@dataclasses.dataclass(frozen=True)
class Own(polar.NewtonSchulz):
    """An oracle of somebody else: its text cannot be read here."""

    name: ClassVar[str] = "own"


def test_an_oracle_of_ones_own_is_not_named() -> None:
    net = model()
    optimizer = Muon(net.named_parameters(), polar=Own())
    net(torch.randn(5, 10)).square().sum().backward()
    optimizer.step()
    assert [(m.name, m.oracle) for m in momenta(optimizer)] == [(name, None) for name in NAMES]


@pytest.mark.parametrize("method", [*advice.CANDIDATES[1:], polar.Jordan(5)], ids=str)
def test_layers_are_judged_as_the_matrices_are(method: polar.PolarMethod) -> None:
    """The prediction from singular values against the oracle itself, measured by a decomposition."""
    for entry in momenta(stepped("ours")[1]):
        report = advice.examine([entry], method)[0]
        ball, m = lmo.Spectral(polar=method), entry.matrix.double()
        exact = measure(ball, m, ball(m), exact=True)
        assert report.in_use is not None
        assert report.in_use.gap == pytest.approx(exact.gap, abs=1e-4)
        assert report.in_use.overshoot == pytest.approx(exact.overshoot, abs=1e-4)


def test_a_report() -> None:
    entry = momenta(stepped("torch")[1])[1]
    report = advice.examine([entry])[0]
    values = torch.linalg.svdvals(entry.matrix.double())
    assert report.oracle == polar.Jordan(5)
    assert report.in_use == predict(polar.Jordan(5), [*report.layer.values, *[0.0] * (16 - report.layer.values.size)])
    assert len(report.layer.values) <= len(values)


def test_many_small_layers_are_judged_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint may have thousands of tiny matrices: oracles are chosen and judged once for each shape."""
    calls: list[tuple[int, int]] = []
    monkeypatch.setattr(Auto, "at", lambda self, n, m, device=None: calls.append((n, m)) or polar.Zolotarev(2))
    generator = torch.Generator().manual_seed(0)
    matrices = [torch.randn(2, 2 + i % 2, generator=generator) for i in range(200)]
    matrices[7][1] = matrices[7][0]  # of rank 1: judged apart
    entries = [Momentum(str(i), m, polar.PolarExpress(4), parameter=str(i)) for i, m in enumerate(matrices)]
    answer = advice.advise_on(entries)
    assert len(calls) < 20
    assert [len(r.layer.values) for r in answer.reports[6:9]] == [2, 1, 2]
    for one in answer.candidates:
        assert list(one.each) == [spectra.judge_layer(one.oracle, r.layer) for r in answer.reports]
    for report in answer.reports:
        null = [0.0] * (2 - report.layer.values.size)
        assert report.in_use == predict(polar.PolarExpress(4), [*report.layer.values, *null])


def test_wrong_files(tmp_path: Path) -> None:
    torch.save({"model": model().state_dict()}, tmp_path / "weights.pt")
    torch.save(torch.optim.AdamW(model().parameters()).state_dict(), tmp_path / "adamw.pt")
    torch.save({"net": model()}, tmp_path / "objects.pt")
    (tmp_path / "text.pt").write_text("not a checkpoint")
    (tmp_path / "empty.pt").write_bytes(b"")
    whole = (tmp_path / "weights.pt").read_bytes()
    (tmp_path / "cut.pt").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "folder").mkdir()
    diverged = {"state": {0: {"momentum_buffer": torch.full((3, 3), torch.nan)}}, "param_groups": [{"params": [0]}]}
    torch.save(diverged, tmp_path / "nan.pt")
    for name, error, words in (
        ("weights.pt", ValueError, "has no momentum matrix"),
        ("adamw.pt", ValueError, "has no momentum matrix"),
        ("objects.pt", ValueError, "Python objects, which are not loaded for safety"),
        ("text.pt", ValueError, "is not a"),
        ("empty.pt", ValueError, "is not a"),
        ("cut.pt", ValueError, "is not a"),
        ("folder", ValueError, r"without \.metadata"),
        ("nan.pt", ValueError, "contains a NaN or an infinity"),
        ("nowhere.pt", FileNotFoundError, "there is no checkpoint"),
    ):
        with pytest.raises(error, match=words) as caught:
            read(tmp_path / name)
        assert "\n" not in str(caught.value)


def momentum_of(oracle: polar.PolarMethod | None, values: torch.Tensor, m: int) -> Any:
    """A layer of a checkpoint with these singular values, n x m."""
    torch.manual_seed(0)
    n = len(values)
    left, right = (torch.linalg.qr(torch.randn(side, n, dtype=torch.float64))[0] for side in (n, m))
    return Momentum("layer", (left * values) @ right.mT, oracle)


SPECTRA = {
    "flat": torch.linspace(1.0, 0.5, 64, dtype=torch.float64),
    "wide": torch.logspace(0, -3, 64, dtype=torch.float64),
    "power": 1.0 / torch.arange(1, 129, dtype=torch.float64),
}
USED = ("zolotarev:3", "zolotarev(poles=1, polish=9)", "polar-express:6", "cans:4", "you:6", "exact-svd", "jordan:3")


@pytest.mark.parametrize("oracle", USED)
@pytest.mark.parametrize("name", SPECTRA)
def test_advice_never_costs_more_than_what_is_in_use_and_good_enough(name: str, oracle: str) -> None:
    used = polar.parse(oracle)
    found = advice.advise_on([momentum_of(used, SPECTRA[name], 256)])
    assert found.chosen is not None
    assert found.cost is not None
    assert all(map(advice.is_exact_enough, found.chosen.each))
    if found.exact_enough:
        assert found.cost <= 1.0
    assert found.keep == (found.oracle == used)
    assert found.keep == found.lines[1].startswith("Keep it")
    assert found.keep or found.cost < advice.WORTH or not found.exact_enough


def test_what_is_cheapest_is_kept_and_what_is_not_good_enough_is_not() -> None:
    best = advice.advise_on([momentum_of(None, SPECTRA["wide"], 256)]).oracle
    assert best is not None
    assert advice.advise_on([momentum_of(best, SPECTRA["wide"], 256)]).keep
    for oracle in (polar.ExactSVD(), polar.PolarExpress(1), None):  # dear, bad, unknown
        assert not advice.advise_on([momentum_of(oracle, SPECTRA["wide"], 256)]).keep


@pytest.mark.parametrize(
    ("coefficients", "oracle"),
    [
        (JORDAN, polar.Jordan(5)),
        ([JORDAN], polar.Jordan(5)),
        ("original", polar.Jordan(5)),
        ("polar_express", polar.PolarExpress(5)),
        ("quintic", polar.You(5)),
        ([(2.0, -1.5, 0.5), JORDAN], polar.Polynomial(((2.0, -1.5, 0.5), *(JORDAN,) * 4))),
    ],
)
def test_the_oracle_is_the_one_that_loading_takes(coefficients: object, oracle: polar.PolarMethod) -> None:
    group = {"params": [0], "lr": 0.1, "momentum": 0.9, "ns_steps": 5, "ns_coefficients": coefficients}
    state = {"state": {0: {"momentum_buffer": torch.randn(6, 8)}}, "param_groups": [group]}
    (read,) = momenta(state)
    assert read.oracle == oracle
    taken = lmo.parse(translated(group)["ball"]).polar  # type: ignore[attr-defined]
    assert taken.map.coefficients == oracle.map.coefficients  # type: ignore[attr-defined]
