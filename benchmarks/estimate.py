"""How good the estimate of delta and gap is, and what it costs: one table, over spectra, sizes and oracles.

    python benchmarks/estimate.py [--sizes 64 256 512 1024] [--out benchmarks/results]

Every row is one oracle at one size, the worst case over seven spectra. Times are ratios within one process,
interleaved, median and range of five.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track

sys.path.insert(0, str(Path(__file__).parent.parent / "tests/helpers"))
from inexact_muon import lmo, measure, polar
from inexact_muon.inexactness import SMALL
from inexact_muon.inexactness.estimate import choose_plan
from matrices import SPECTRA, matrix

ORACLES = (
    *(polar.PolarExpress(steps) for steps in (1, 2, 3, 4, 5, 6, 8)),
    polar.Jordan(5),
    polar.You(6),
    polar.NewtonSchulz(5),
    polar.Zolotarev(2),
    polar.Zolotarev(3),
    polar.Zolotarev(4, lower=1e-4),
)


def one(method: polar.PolarMethod, n: int, m: int) -> dict[str, Any]:
    ball = lmo.Spectral(polar=method)
    ratio, worst_delta, worst_gap, where = 1.0, 0.0, 0.0, ""
    for spectrum in SPECTRA:
        a = matrix(n, m, spectrum, seed=7, dtype=torch.float32)
        d_hat = ball(a)
        exact, estimate = measure(ball, a, d_hat, exact=True), measure(ball, a, d_hat)
        if 1e-3 < exact.delta <= 0.9 and abs(estimate.delta / exact.delta - 1) > worst_delta:
            ratio, worst_delta = estimate.delta / exact.delta, abs(estimate.delta / exact.delta - 1)
        if abs(estimate.gap - exact.gap) > abs(worst_gap):
            worst_gap, where = estimate.gap - exact.gap, spectrum
    times = []
    for _ in range(5):
        start = time.perf_counter()
        d_hat = ball(a)
        middle = time.perf_counter()
        measure(ball, a, d_hat)
        times.append((time.perf_counter() - middle) / (middle - start))
    times.sort()
    share = None if min(n, m) <= SMALL else choose_plan(n, m, method.flops(n, m)).flops(n, m) / method.flops(n, m)
    return {
        "oracle": str(method),
        "shape": f"{n}x{m}",
        "delta ratio": ratio,
        "gap error": worst_gap,
        "worst spectrum": where,
        "flops share": share,
        "time ratio": times[2],
        "time range": [times[0], times[-1]],
    }


def markdown(rows: list[dict[str, Any]]) -> str:
    head = "| oracle | shape | estimate/exact delta | gap error | worst on | flops | time / oracle (range) |"
    lines = [head, "|---|---|---:|---:|---|---:|---:|"]
    for r in rows:
        share = "Gram" if r["flops share"] is None else f"{r['flops share']:.1%}"
        low, high = r["time range"]
        lines.append(
            f"| {r['oracle']} | {r['shape']} | {r['delta ratio']:.3f} | {r['gap error']:+.4f} | {r['worst spectrum']} "
            f"| {share} | {r['time ratio']:.2f} ({low:.2f} to {high:.2f}) |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 256, 512, 1024])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    arguments = parser.parse_args()
    shapes = [(n, n) for n in arguments.sizes] + [(n, 4 * n) for n in arguments.sizes if 128 < n <= 512]
    jobs = [(method, n, m) for n, m in shapes for method in ORACLES]
    rows = [one(*job) for job in track(jobs, description="measuring", console=Console(stderr=True))]
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "estimate.json").write_text(json.dumps(rows, indent=1) + "\n")
    (arguments.out / "estimate.md").write_text(markdown(rows))
    print(markdown(rows))


if __name__ == "__main__":
    main()
