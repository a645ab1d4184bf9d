"""Several gloo processes of one machine: time of a step, bytes against the kernel and the plan, loss against bytes.

    python benchmarks/distributed.py [--steps 300] [--repeats 7] [--results benchmarks/results] [--figures docs/figures]

Times compare ways to make the same step, interleaved in the same two processes; on a busy machine only their ratios
mean something. Bytes are those of gradients and optimizer, not of weights gathered for a forward pass by FSDP.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from math import inf
from pathlib import Path
from typing import Any

import altair as alt
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from inexact_muon import Muon
from inexact_muon_lab.problems import Task, build
from inexact_muon_lab.spec.spec import NanoGPT, RunSpec

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).parent.parent / "tests/helpers"))
from ranks import on_ranks
from test_parallel_bytes import PLANS, measured, planned

WIDTH = 512
LAYER = (*[(WIDTH, WIDTH)] * 4, (4 * WIDTH, WIDTH), (WIDTH, 4 * WIDTH))
"""The matrices of one layer of a GPT."""

BYTES = ((512, 128),) * 4 + ((256, 256),) * 4
RUNS = {
    "owner-rank": ("owner-rank", False),
    "MuonBP, P=5": ("block-periodic:5", True),
    "MuonBP, P=25": ("block-periodic:25", True),
    "EF21, identity": ("compressed(up=identity)", False),
    "EF21, rank 8": ("compressed(up=low-rank:8)", False),
    "EF21, rank 2": ("compressed(up=low-rank:2)", False),
    "EF21, top 5%": ("compressed(up=top-k:0.05)", False),
    "EF21, natural": ("compressed(up=natural)", False),
}
"""Name -> (strategy, whether parameters are sharded by rows)."""


def timed(rank: int, world: int, repeats: int) -> dict[str, list[float]]:
    """Seconds of a step, one thread each: one process while the other waits, then both."""

    def made(strategy: str) -> Callable[[], Any]:
        params = [nn.Parameter(torch.randn(s, generator=torch.Generator().manual_seed(i))) for i, s in enumerate(LAYER)]
        for p in params:
            p.grad = p.detach().clone()
        return Muon(params, strategy=strategy).step

    alone, shared, repeated = made("auto"), made("owner-rank"), made("auto")
    ways: dict[str, tuple[Callable[[], Any], bool]] = {
        "one process": (alone, False),
        "two processes, each does everything": (repeated, True),
        "two processes, owner-rank": (shared, True),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats + 1):
        for name, (step, both) in ways.items():
            dist.barrier()
            start = time.perf_counter()
            if both or rank == 0:
                step()
            seconds[name].append(time.perf_counter() - start)
            dist.barrier()
    return {name: found[1:] for name, found in seconds.items()}


def sharded(model: nn.Module) -> nn.Module:
    """A copy whose parameters are divided by rows."""
    mesh, twin = init_device_mesh("cpu", (dist.get_world_size(),)), copy.deepcopy(model)
    for module in twin.modules():
        for name, p in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(distribute_tensor(p.detach(), mesh, [Shard(0)], src_data_rank=None)))
    return twin


def trained(rank: int, world: int, name: str, steps: int, **telemetry: Any) -> tuple[list[dict[str, Any]], Muon]:
    """Validation loss and bytes that a rank has sent, for gradients and the optimizer, along a training."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    task = build(RunSpec(problem=NanoGPT(context=64), batch=16 * world, validation=4))
    strategy, cut = RUNS[name]
    model = task.model
    twin = sharded(model) if cut else model
    optimizer = Muon.for_model(
        twin, 0.05, momentum=0.9, strategy=strategy, polar="polar-express:5", adamw={"lr": 3e-3}, **telemetry
    )
    wire, rows = optimizer.team.wire, []
    for step in range(steps + 1):
        if step % 20 == 0:
            loss = validation(task, model)
            rows.append({"run": name, "step": step, "loss": loss, "megabytes": wire.sent / 1e6})
        for group in optimizer.param_groups:  # the last two fifths cool down
            full = group.setdefault("initial_lr", group["lr"])
            group["lr"] = full * min(1.0, (steps - step) / (0.4 * steps) + 0.02)
        model.zero_grad()
        task.loss(model, tuple(x[rank::world] for x in task.batch(step))).backward()
        for p, q in zip(model.parameters(), twin.parameters(), strict=True):
            assert p.grad is not None
            if not optimizer.team.strategy.averages:
                wire.reduce(p.grad, (dist.group.WORLD,)).div_(world)
            if cut:
                q.grad = distribute_tensor(p.grad, q.device_mesh, q.placements, src_data_rank=None)
        optimizer.step()
        if cut:
            with torch.no_grad():
                for p, q in zip(model.parameters(), twin.parameters(), strict=True):
                    p.copy_(q.full_tensor())
    return rows, optimizer


def curve(rank: int, world: int, name: str, steps: int) -> list[dict[str, Any]]:
    return trained(rank, world, name, steps, sample_every=20)[0]


def errors(rank: int, world: int) -> list[dict[str, Any]]:
    """Medians over the layers at the 22nd step, which is one by blocks for MuonBP."""
    rows = []
    for name in RUNS:
        found = list(trained(rank, world, name, 21, sample_every=21, sample_share=inf)[1].inexactness().values())
        medians = {n: statistics.median(getattr(f, n) for f in found) for n in ("delta", "gap", "overshoot")}
        rows.append({"run": name, **medians})
    return rows


@torch.no_grad()
def validation(task: Task, model: nn.Module) -> float:
    """Mean loss of four batches."""
    assert task.validation is not None
    return statistics.fmean(float(task.loss(model, task.validation(i))) for i in range(4))


def counts(world: int) -> Iterator[dict[str, Any]]:
    """Two steps of each strategy: bytes counted, by the kernel and planned; flops counted and planned."""
    ranks = on_ranks(measured, world, BYTES, list(PLANS))
    for name in PLANS:
        cost = planned(name, BYTES, world)
        paid = cost.total_sent + (cost.gradients * world if name.startswith("compressed") else 0)
        counted, kernel, flops = (sum(getattr(r[name], k) for r in ranks) / 2 for k in ("counted", "kernel", "flops"))
        yield {
            "strategy": name,
            "ranks": world,
            "counted": counted,
            "kernel / counted": kernel / counted,
            "planned / counted": paid / counted,
            "planned / counted flops": cost.total_flops / flops,
        }


def figure(rows: list[dict[str, Any]]) -> alt.Chart:
    title = "A byte GPT (2 layers, width 96) on 2 ranks: validation loss against bytes sent by a rank"
    colour = alt.Color("run:N", title=None, sort=list(RUNS), scale=alt.Scale(scheme="category10"))
    data = alt.Data(values=[row for row in rows if row["step"]])
    chart = alt.Chart(data, title=title).mark_line(point={"size": 14}, strokeWidth=1.5)
    x = alt.X("megabytes:Q", title="megabytes, gradients and optimizer", scale=alt.Scale(type="log"))
    y = alt.Y("loss:Q", title="validation loss", scale=alt.Scale(zero=False))
    return chart.encode(x=x, y=y, color=colour, tooltip=["run:N", "step:Q", "loss:Q"]).properties(width=560, height=340)


def table(rows: list[dict[str, Any]]) -> list[str]:
    lines = ["| " + " | ".join(rows[0]) + " |", "|" + "---|" * len(rows[0])]
    for row in rows:
        cells = (
            f"{v:,.0f}" if isinstance(v, float) and v >= 1e4 else f"{v:.3g}" if isinstance(v, float) else v
            for v in row.values()
        )
        lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    return lines


def times(repeats: int) -> list[dict[str, Any]]:
    seconds = on_ranks(timed, 2, repeats)[0]
    base = seconds["one process"]
    rows = []
    for name, found in seconds.items():
        ratios = [a / b for a, b in zip(found, base, strict=True)]
        middle, milliseconds = statistics.median(ratios), 1e3 * statistics.median(found)
        ranges = {"least": min(ratios), "most": max(ratios)}
        rows.append({"way": name, "time / one process": middle, **ranges, "milliseconds": milliseconds})
    return rows


def page(found: dict[str, Any]) -> list[str]:
    last = found["curves"][-1]["step"]
    ends = [row for row in found["curves"] if row["step"] == last]
    text = ["# Several processes", "", "Written by `python benchmarks/distributed.py`.", "", "## Time of a step", ""]
    text += [f"One GPT layer of width {WIDTH}, float32, `PolarExpress(5)`, one thread a process; two cores, shared"]
    text += ["with others.", "", *table(found["times"])]
    text += ["", "## Bytes and flops of one step, all ranks together", ""]
    text += ["`kernel` is what Linux says the sockets have sent, with headers and two barriers.", ""]
    text += [*table(found["bytes"]), "", f"## A byte GPT after {last} steps on two ranks", ""]
    text += ["Megabytes sent by a rank, for gradients and optimizer. One step size for all.", "", *table(ends)]
    text += ["", "## Inexactness of the answers at the 22nd step", ""]
    text += ["Medians over layers. MuonBP's is of a step by blocks, EF21's against the true mean momentum.", ""]
    return [*text, *table(found["errors"])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="*", default=["times", "bytes", "curves", "errors"], help="the rest stays")
    parser.add_argument("--steps", type=int, default=160)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--figures", type=Path, default=Path("docs/figures"))
    arguments = parser.parse_args()
    record = arguments.results / "distributed.json"
    found: dict[str, Any] = json.loads(record.read_text()) if record.exists() else {}
    made: dict[str, Callable[[], Any]] = {
        "times": lambda: times(arguments.repeats),
        "bytes": lambda: [row for world in (2, 4) for row in counts(world)],
        "curves": lambda: [row for name in RUNS for row in on_ranks(curve, 2, name, arguments.steps)[0]],
        "errors": lambda: on_ranks(errors, 2)[0],
    }
    for number, part in enumerate(arguments.parts):
        print(f"{number + 1} of {len(arguments.parts)}: {part}", flush=True)
        found[part] = made[part]()
        record.write_text(json.dumps(found, indent=1) + "\n")
    (arguments.results / "distributed.md").write_text("\n".join(page(found)) + "\n")
    chart = figure(found["curves"])
    chart.save(str(arguments.figures / "distributed.svg"))
    chart.save(str(arguments.figures / "distributed.png"), scale_factor=1.5)


if __name__ == "__main__":
    main()
