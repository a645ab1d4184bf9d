"""Symmetric products on an accelerator: the kernel is baddbmm, exactly symmetric, and used where it pays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

from inexact_muon.polar import kernel
from inexact_muon.polar.kernel import symmetric_product
from inexact_muon_lab.plan import pricing
from inexact_muon_lab.plan.recorder import Recorder, fake_h100

ROOT = Path(__file__).parent.parent
VERSION = version("triton") if kernel.INSTALLED else ""
needs_triton = pytest.mark.skipif(
    not kernel.INSTALLED or tuple(map(int, VERSION.split(".")[:2])) < (3, 9),
    reason=f"Triton {VERSION} is too old, its interpreter fails with numpy 2.4"
    if kernel.INSTALLED
    else "Triton is not installed: make test-kernels",
)
HALVES = (torch.float16, torch.bfloat16)
CUDA = torch.device("cuda")


def ran(code: list[str], tmp_path: Path, **environment: str) -> str:
    """What a Python process of its own prints: Triton looks at its settings when it is imported."""
    path = os.pathsep.join(str(ROOT / name) for name in ("src", "tests/helpers", "benchmarks"))
    settings = {**os.environ, "PYTHONPATH": path, "TRITON_CACHE_DIR": str(tmp_path), **environment}
    done = subprocess.run([sys.executable, *code], env=settings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_triton
def test_the_kernel_is_a_product_in_the_interpreter(tmp_path: Path) -> None:
    found = json.loads(ran([str(ROOT / "tests/helpers/kernel_interpreted.py")], tmp_path, TRITON_INTERPRET="1"))
    assert len(found) == 3 * 3 * 6 * 2
    for case, error, symmetric in found:
        assert error <= 4.0, case  # units in the last place
        assert symmetric, case


COMPILE = "import json, sys, kernels; print(json.dumps([kernels.row(*case) for case in json.loads(sys.argv[1])]))"


def committed() -> tuple[str, list[str]]:
    """(the version of Triton, the rows) of the page."""
    text = (ROOT / "benchmarks" / "results" / "kernels.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| sm")]
    return text.partition("Triton ")[2].partition(",")[0], rows


def check_rows(cases: list[tuple[int, str, str]], tmp_path: Path) -> None:
    rows = json.loads(ran(["-c", COMPILE, json.dumps(cases)], tmp_path))
    made_with, known = committed()
    for row in rows:
        shared, most, stack = (int(cell) for cell in row.split("|")[6:9])
        assert (shared <= most, stack) == (True, 0), row
        if made_with == VERSION:
            assert row in known


@needs_triton
def test_the_kernel_compiles_for_an_h100_as_the_page_says(tmp_path: Path) -> None:
    check_rows([(90, "fp16", "x x^T")], tmp_path)


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("architecture", [80, 90, 100, 120])
def test_the_kernel_compiles_for_every_architecture_as_the_page_says(architecture: int, tmp_path: Path) -> None:
    check_rows([(architecture, d, y) for d in ("fp16", "bf16", "fp32") for y in ("x x^T", "a b")], tmp_path)


def test_the_page_has_no_stack_and_every_case() -> None:
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in committed()[1]]
    assert len(rows) == 4 * 3 * 2
    assert all(row[-1] == "0" and int(row[5]) <= int(row[6]) for row in rows)


# The gate -------------------------------------------------------------------------------------------------------------

GATES = [
    ((8, 0), 1024, 4, True),
    ((8, 0), 1024, 1, False),  # 36 tiles
    ((8, 0), 768, 64, False),
    ((9, 0), 2048, 64, False),
    ((9, 0), 3072, 1, True),
    ((9, 0), 4096, 1, True),
    ((10, 0), 3072, 8, False),  # nothing is published
    ((12, 0), 4096, 1, True),
    ((8, 9), 2048, 8, False),
]


@pytest.mark.parametrize(("capability", "n", "batch", "wanted"), GATES)
def test_the_gate(
    capability: tuple[int, int], n: int, batch: int, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
    monkeypatch.setattr(kernel, "INSTALLED", True)
    assert [kernel.uses_kernel(n, batch, dtype, CUDA) for dtype in HALVES] == [wanted] * 2
    assert not kernel.uses_kernel(n, batch, torch.float32, CUDA)
    assert not kernel.uses_kernel(n, batch, torch.float16, torch.device("cpu"))
    monkeypatch.setattr(kernel, "INSTALLED", False)
    assert not kernel.uses_kernel(n, batch, torch.float16, CUDA)


def test_the_gate_follows_what_is_published() -> None:
    for capability, side in kernel.SMALLEST.items():
        assert all(pricing.speed(n, capability) > 1.0 for n in range(side, 16384, 64))
    assert pricing.speed(2048, (9, 0)) == pytest.approx(0.78)
    assert pricing.speed(4096, (9, 0)) == pytest.approx(1.26)
    assert pricing.speed(2896, (9, 0)) == pytest.approx(1.02, abs=1e-3), "halfway in log n"
    assert pricing.speed(100, (9, 0)) == 0.7
    assert pricing.speed(100_000, (8, 0)) == 1.73


# One operation --------------------------------------------------------------------------------------------------------


def test_it_is_one_operation_that_traces_and_fakes() -> None:
    x = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
    for add in (None, torch.eye(5).expand(2, 5, 5).contiguous()):
        arguments = (x, x.mT, add, 0.5, -2.0, torch.empty(2, 5, 5))
        torch.library.opcheck(kernel.symmetric_kernel, arguments)


def accept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inexact_muon.polar.kernel.uses_kernel", lambda *_: True)
    monkeypatch.setattr("inexact_muon.polar.kernel.LEAST", 0)


def test_the_seam_gives_the_same_with_and_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(3, 6, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    add = x @ x.mT
    plain = [symmetric_product(x, x.mT), symmetric_product(add, add, add=add, beta=-2.0, alpha=0.5)]
    accept(monkeypatch)
    torch.testing.assert_close(symmetric_product(x, x.mT), plain[0])
    torch.testing.assert_close(symmetric_product(add, add, add=add, beta=-2.0, alpha=0.5), plain[1])
    out = torch.empty(3, 6, 6, dtype=torch.float64)
    assert symmetric_product(x, x.mT, add=add, beta=1.0, out=out) is out
    torch.testing.assert_close(out, 2.0 * add)


def test_it_stays_one_node_in_a_compiled_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    accept(monkeypatch)
    names: list[str] = []

    def backend(graph: torch.fx.GraphModule, _: object) -> object:
        names.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    x = torch.randn(2, 4, 7)
    made = torch.compile(lambda x: symmetric_product(x, x.mT), backend=backend, fullgraph=True)(x)
    torch.testing.assert_close(made, x @ x.mT)
    assert sum("symmetric_product" in name for name in names) == 1
    assert not any("bmm" in name for name in names)


def test_it_is_one_launch_on_a_fake_device() -> None:
    with fake_h100(triton=True), Recorder() as found:
        x = torch.empty(2, 4096, 8192, dtype=torch.float16, device="cuda")
        gram = symmetric_product(x, x.mT)
        symmetric_product(gram, gram, add=gram, beta=2.0, alpha=3.0)
        small = torch.empty(2, 768, 768, dtype=torch.float16, device="cuda")
        symmetric_product(small, small, add=small, beta=2.0)
    assert [(done.name, done.launches) for done in found.operations] == [
        ("symmetric_product", 1),
        ("symmetric_product", 1),
        ("baddbmm", 2),
    ]
