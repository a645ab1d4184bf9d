"""The benchmark measures what it says: known times and memory; its contenders are what they are called."""

import io
import json
import math
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from inexact_muon import polar
from inexact_muon.schedules.published import JORDAN
from inexact_muon_lab import cli
from inexact_muon_lab.bench import oracles, page, peers, steps, timing
from inexact_muon_lab.bench.timing import interleaved, peak_memory
from inexact_muon_lab.tune.spectra import SPECTRA

ROOT = Path(__file__).parent.parent
COMMITTED = json.loads((ROOT / "benchmarks/results/bench.json").read_text())


def test_ratios_are_taken_within_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that is slower in every round, one that takes three times as long does so exactly."""
    now, ticks = [0.0], [1.0]
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def work(seconds: float) -> None:
        now[0] += seconds * len(ticks)

    times = interleaved({"short": partial(work, 1.0), "long": partial(work, 3.0)}, 5, lambda: ticks.append(1.0))
    assert len(ticks) == 1 + 7
    assert times == {"short": [3.0, 4.0, 5.0, 6.0, 7.0], "long": [9.0, 12.0, 15.0, 18.0, 21.0]}
    assert timing.ratio(times, "long", "short") == {"time": 3.0, "low": 3.0, "high": 3.0}
    assert timing.ratio(times, "short", "short")["time"] == 1.0


def test_memory_is_what_was_held_at_once() -> None:
    def work() -> None:
        for _ in range(5):
            x = torch.ones(2**18)  # 1 MB, one at a time
            del x
        torch.ones(2**18), torch.ones(2**18)

    assert 2 * 2**20 <= peak_memory(work) < 3 * 2**20


def test_the_step_stays_within_its_memory() -> None:
    """Six copies of the largest matrix when the limit is nothing."""
    for shapes in (((96, 96),) * 20, ((64, 256),) * 8, ((400, 400),) * 2):
        optimizer = steps.Muon.for_model(steps.Bag(shapes), 1e-3, rules=steps.MATRICES, memory_limit=0)
        assert peak_memory(optimizer.step) <= 6 * 4 * math.prod(shapes[0]) + 2**16


@pytest.mark.parametrize("spectrum", ["log-uniform", "power-law"])
@pytest.mark.parametrize("shape", [(20, 20), (20, 50), (50, 20)])
def test_matrices_have_their_spectrum(spectrum: str, shape: tuple[int, int]) -> None:
    m = oracles.with_spectrum(shape, spectrum, 0)
    assert tuple(m.shape) == shape
    values = torch.from_numpy(SPECTRA[spectrum](20)).float().sort(descending=True).values
    torch.testing.assert_close(torch.linalg.svdvals(m), values, rtol=1e-3, atol=1e-5)


def test_the_plain_quintics_are_jordans() -> None:
    ms = [torch.randn(s, generator=torch.Generator().manual_seed(1)) for s in ((12, 12), (12, 30), (30, 12))]
    for m, x in zip(ms, oracles.quintics(ms, [JORDAN] * 5), strict=True):
        torch.testing.assert_close(x, polar.Jordan(5, form="direct")(m), rtol=0, atol=1e-4)
    made = oracles.contenders(((12, 12), (12, 30), (30, 12)))
    for text in (oracles.FAST, oracles.ACCURATE):
        for m, x in zip(ms, made[text](ms), strict=True):
            torch.testing.assert_close(x, polar.parse(text)(m), rtol=0, atol=1e-4)


def small(name: str) -> bool:
    """Without heavyball, which compiles for half a minute."""
    return not name.startswith("heavyball")


def test_every_optimizer_steps() -> None:
    for name, contender in steps.contenders(peers=True).items():
        bag = steps.Bag(((8, 8), (8, 16)))
        before = [p.detach().clone() for p in bag.parameters()]
        try:
            if small(name):
                contender.step(bag)
        except steps.ABSENT:
            assert contender.peer
            continue
        moved = [not torch.equal(p.detach(), old) for p, old in zip(bag.parameters(), before, strict=True)]
        assert all(moved) or not small(name), name


def test_the_accuracy_of_a_step_is_that_of_its_oracle() -> None:
    """Predicted from the scalar map on the recorded spectrum, measured from the weights after a step."""
    for name, text in ((steps.ours("auto:fast"), "auto:fast"), (steps.BATCHED, "jordan:5")):
        method = polar.parse(text).at(48, 48)
        expected = method.judge(oracles.values(oracles.RECORDED, 48))
        found = steps.accuracy(steps.contenders()[name], 48)
        assert found["gap"] == pytest.approx(expected.gap, abs=2e-3)
        assert found["overshoot"] == pytest.approx(expected.overshoot, abs=2e-3)
        assert 0.0 < found["smallest"] < 1.0


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch.optim.Muon came with torch 2.9")
def test_a_peer_in_float32_multiplies_in_float32() -> None:
    seen: dict[bool, set[torch.dtype]] = {}

    class Products(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            if "mm" in func._schema.name:
                seen[wide].add(args[-1].dtype)
            return func(*args, **(kwargs or {}))

    for wide in (False, True):
        seen[wide] = set()
        bag = steps.Bag(((8, 8),))
        work = steps.stepping(peers.PEERS[peers.TORCH].make(list(bag.parameters()), torch.device("cpu")))
        with Products():
            (peers.in_float32(peers.PEERS[peers.TORCH], work) if wide else work)()
    assert seen == {False: {torch.bfloat16}, True: {torch.float32}}


def test_a_device_is_waited_for_before_and_after(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    monkeypatch.setattr(timing, "wait", lambda device: order.append(str(device)))
    interleaved({"one": lambda: order.append("work")}, 2, device=torch.device("cuda:1"))
    assert order == ["cuda:1", "work", "cuda:1"] * 4


def test_waiting_is_synchronising(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    monkeypatch.setattr(torch.cuda, "synchronize", seen.append)
    timing.wait(torch.device("cpu"))
    timing.wait(torch.device("cuda:0"))
    assert seen == [torch.device("cuda:0")]


@pytest.mark.parametrize("name", ["cuda", "cuda:7", "meta", "gpu"])
def test_a_device_that_is_not_there_is_refused_with_one_sentence(name: str) -> None:
    if name == "cuda" and torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(ValueError, match=rf"^this machine has no usable device '{name}' \(.*\): leave --device out"):
        cli.COMMANDS["bench"](device=name)


def test_figures_of_two_devices_are_not_mixed(tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    path.write_text(json.dumps({"device": "cuda"}))
    with pytest.raises(ValueError, match="holds figures of device 'cuda', not 'cpu': name another file"):
        cli.COMMANDS["bench"](out=path)


def test_the_machine_says_what_ratios_depend_on(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = timing.machine(torch.device("cpu"), peers=True)
    assert cpu["torch"] == torch.__version__
    assert cpu["bfloat16 products"] in ("native", "emulated")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    gpu = timing.machine(torch.device("cuda"))
    assert (gpu["device"], gpu["capability"]) == ("NVIDIA H100", "9.0")
    assert timing.version_of("no-such-package") == ""


@pytest.mark.parametrize(("cpu", "library"), [(True, True), (True, False), (False, True), (False, False)])
def test_bfloat16_is_native_if_the_cpu_and_the_library_say_so(
    cpu: bool, library: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: library)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True, "avx512_bf16": cpu}, raising=False)
    assert timing.native_bfloat16() == (cpu and library)
    monkeypatch.delattr(torch.cpu, "get_capabilities")  # as in torch 2.6
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: cpu)
    assert timing.native_bfloat16() == (cpu and library)


def test_what_is_missing_is_named_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """All parts of the code path of a device, on a CPU with tiny sets."""
    monkeypatch.setattr(steps, "SETS", {"tiny": ((8, 8), (8, 16))})
    monkeypatch.setattr(peers, "PEERS", {"gone.Muon": peers.Peer("gone", "no_such_module", "Muon")})
    monkeypatch.setattr(steps, "PEERS", peers.PEERS)
    rows, absent = steps.compare(2, True, lambda: None, torch.device("cpu"))
    assert {r["set"] for r in rows} == {"tiny"}
    assert all(
        r[text]["low"] <= r[text]["time"] <= r[text]["high"] for r in rows for text in ("auto:fast", "auto:accurate")
    )
    assert list(absent.values()) == ["No module named 'no_such_module'"]
    report = {"device": "cuda:0", "machine": {"device": "x"}, "steps": rows, "absent": absent}
    assert "--device cuda:0 " in page.markdown(report)
    assert "No row: gone.Muon" in page.markdown(report)


def test_the_page_shows_the_committed_numbers(tmp_path: Path) -> None:
    page.show(COMMITTED, Console(file=io.StringIO(), width=200))
    written = page.save(COMMITTED, tmp_path / "bench.json")
    assert {path.suffix for path in written} == {".json", ".md"}
    assert (tmp_path / "bench.md").read_text() == (ROOT / "benchmarks/results/bench.md").read_text()


@pytest.mark.data
def test_telemetry_costs_what_the_page_says() -> None:
    """Under a tenth every step, under a fiftieth every tenth step, beyond what the spread of the machine hides."""
    rows = json.loads((ROOT / "benchmarks/results/telemetry.json").read_text())
    allowed = {"every 1": 1.10, "every 10": 1.02}
    assert {r["set"] for r in rows} == {"18 small matrices", "GPT-2 layer"}
    assert all(r["time"] < allowed[r["sampling"]] for r in rows)


@pytest.mark.data
def test_the_committed_oracles_are_accurate_enough() -> None:
    """What `auto:accurate` promises, measured on the layer of the benchmark; no worse than five quintics."""
    rows = {(r["oracle"], r["spectrum"]): r for r in COMMITTED["oracles"]}
    for spectrum in ("gaussian", "log-uniform", "power-law"):
        cheap, five = rows[oracles.ACCURATE, spectrum], rows[oracles.FIVE, spectrum]
        assert cheap["gap"] <= 0.03
        assert cheap["overshoot"] <= 1.07
        assert cheap["gap"] <= five["gap"]
        assert cheap["overshoot"] <= five["overshoot"]
    assert all(r["peak"] <= r["allowed"] for r in COMMITTED["memory"])
