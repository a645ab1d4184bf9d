"""The paper's LMO error: what each layer's oracle answered at this step, against the exact answer; and what it cost.

After `step()` the gradient and the momentum are still there, so what the oracle saw is put together again and asked
once more. Training is not touched.
"""

from __future__ import annotations

from typing import Any

import torch

from inexact_muon.inexactness import assess
from inexact_muon.lmo import Spectral
from inexact_muon.optim import LMOOptimizer
from inexact_muon.optim.telemetry import oracle_flops
from inexact_muon.polar import ExactSVD
from inexact_muon.tune.control import Control


def lmo_errors(optimizer: torch.optim.Optimizer, exact: bool, control: Control | None = None) -> dict[str, Any]:
    """{"sum": sum of delta over the matrices, "delta": by matrix, "gap": ..., "overshoot": ...}; {} without an LMO."""
    found: dict[str, dict[str, float]] = {"delta": {}, "gap": {}, "overshoot": {}}
    if isinstance(optimizer, LMOOptimizer):
        for group in optimizer.param_groups:
            if group["algorithm"] == "lmo" and isinstance(optimizer.ball(group), Spectral):
                _group(optimizer, group, exact, control, found)
    return {"sum": sum(found["delta"].values()), **found} if found["delta"] else {}


def _group(
    optimizer: LMOOptimizer,
    group: dict[str, Any],
    exact: bool,
    control: Control | None,
    found: dict[str, dict[str, float]],
) -> None:
    ball = optimizer.ball(group) if control is None else control.ball(group)
    names = group.get("param_names") or [str(index) for index in range(len(group["params"]))]
    for name, parameter in zip(names, group["params"], strict=True):
        if parameter.grad is None:
            continue
        m = optimizer.state[parameter]["momentum_buffer"]
        if group["nesterov"]:
            m = parameter.grad.to(m.dtype).lerp(m, group["momentum"])
        matrices = optimizer.view(group).cut(m.detach())
        for index, matrix in enumerate(matrices):
            label = f"{name}[{index}]" if len(matrices) > 1 else name
            measured, _, _ = assess(ball, matrix, ball.answer(matrix), exact)
            for key, values in found.items():
                values[label] = float(torch.as_tensor(getattr(measured, key)).max())


def skipped(optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """Steps that a parameter did not make because its gradient was not finite; those with none are left out."""
    if not isinstance(optimizer, LMOOptimizer):
        return {}
    counts = {name: int(row.get("skipped", 0)) for name, row in optimizer.stats().items()}
    return {name: count for name, count in counts.items() if count}


def oracle_work(optimizer: torch.optim.Optimizer, control: Control | None = None) -> int:
    """Floating point operations of all oracles in the step just made, and of looking at singular values if it did."""
    if not isinstance(optimizer, LMOOptimizer):
        return 0
    looked = control is not None and control.looked
    total = 0
    for group in optimizer.param_groups:
        ball = optimizer.ball(group) if control is None else control.ball(group)
        for parameter in group["params"]:
            if group["algorithm"] == "lmo" and parameter.grad is not None:
                for shape in optimizer.view(group).shapes(parameter.shape):
                    total += oracle_flops(ball, shape)
                    total += oracle_flops(Spectral(polar=ExactSVD()), shape) if looked else 0
    return total
