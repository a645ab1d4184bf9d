"""The Triton kernel compiled for each architecture, no GPU needed: `python benchmarks/kernels.py` writes
benchmarks/results/kernels.md with registers, shared memory and stack. Needs the extra `triton`."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from inexact_muon.polar import triton_kernel

PAGE = Path(__file__).parent / "results" / "kernels.md"
ARCHITECTURES = {80: 163, 90: 227, 100: 227, 120: 99}
"""Compute capability -> KiB of shared memory that a block may have."""

DTYPES = {"fp16": 2, "bf16": 2, "fp32": 4}
LAYOUTS = {"x x^T": ("a_k", "b_k"), "a b": ("a_k", "b_column")}
"""Which strides of the factors are 1: of X and its transposed view, of two n x n matrices."""

HEAD = """# The symmetric product, compiled

Triton {version}, without a GPU. Registers are for each thread, shared memory for each block; a stack of 0
says that nothing is spilled. Tiles, depth, warps and stages are those of `triton_kernel.TILES`.

| architecture | dtype | layout | tile | registers | shared, KiB | of | stack, bytes |
|---|---|---|---|---:|---:|---:|---:|
"""


def compiled(architecture: int, dtype: str, layout: str, adds: bool = True) -> tuple[int, int, int]:
    """(registers, bytes of shared memory, bytes of stack) of the kernel for aligned tensors."""
    side, depth, warps, stages = triton_kernel.TILES[DTYPES[dtype]]
    names = [parameter.name for parameter in triton_kernel.symmetric_kernel.params]
    fixed = {"ADDS": adds, "SIDE": side, "DEPTH": depth, "add_column": 1, "out_column": 1}
    fixed |= dict.fromkeys(LAYOUTS[layout], 1)
    types = dict.fromkeys(names, "i32") | dict.fromkeys(("a", "b", "add", "out"), f"*{dtype}")
    types |= dict.fromkeys(("beta", "alpha"), "fp32") | dict.fromkeys(fixed, "constexpr")
    aligned = [name for name in names if types[name] not in ("constexpr", "fp32")]
    source = ASTSource(
        fn=triton_kernel.symmetric_kernel,
        signature=types,
        constexprs={(names.index(name),): value for name, value in fixed.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in aligned},
    )
    options = {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": True}
    made = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    used = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", text)
    assert used is not None, text
    return int(used[1]), int(made.metadata.shared), int(used[2]) + int(used[3])


def row(architecture: int, dtype: str, layout: str) -> str:
    registers, shared, stack = compiled(architecture, dtype, layout)
    side, depth, warps, stages = triton_kernel.TILES[DTYPES[dtype]]
    tile = f"{side} x {side} x {depth}, {warps} warps, {stages} stages"
    of = ARCHITECTURES[architecture]
    return f"| sm{architecture} | {dtype} | {layout} | {tile} | {registers} | {shared / 1024:.0f} | {of} | {stack} |"


def main() -> None:
    rows = [row(*case) for case in ((a, d, y) for a in ARCHITECTURES for d in DTYPES for y in LAYOUTS)]
    PAGE.write_text(HEAD.format(version=triton.__version__) + "\n".join(rows) + "\n")
    print(PAGE.read_text())


if __name__ == "__main__":
    main()
