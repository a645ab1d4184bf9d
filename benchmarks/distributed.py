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
from pathlib import Path
from typing import Any

import altair as alt
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from inexact_muon import Muon
from inexact_muon.lab.problems import Task, build
from inexact_muon.lab.spec import NanoGPT, RunSpec

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
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
    """Seconds of a step: one process with one and two threads while the other waits, then two processes."""

    def made(strategy: str) -> Callable[[], Any]:
        params = [nn.Parameter(torch.randn(s, generator=torch.Generator().manual_seed(i))) for i, s in enumerate(LAYER)]
        for p in params:
            p.grad = p.detach().clone()
        return Muon(params, strategy=strategy).step

    alone, shared, repeated = made("auto"), made("owner-rank"), made("auto")
    ways: dict[str, tuple[Callable[[], Any], int, bool]] = {
        "one process, one thread": (alone, 1, False),
        "one process, two threads": (alone, 2, False),
        "two processes, each does everything": (repeated, 1, True),
        "two processes, owner-rank": (shared, 1, True),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats + 1):
        for name, (step, threads, both) in ways.items():
            torch.set_num_threads(threads)
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


def trained(rank: int, world: int, name: str, steps: int) -> list[dict[str, Any]]:
    """Validation loss and bytes that a rank has sent, for gradients and the optimizer, along a training."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    task = build(RunSpec(problem=NanoGPT(context=64), batch=16 * world, validation=4))
    strategy, cut = RUNS[name]
    model = task.model
    twin = sharded(model) if cut else model
    optimizer = Muon.for_model(
        twin, 0.05, momentum=0.9, strategy=strategy, polar="polar-express:5", adamw={"lr": 3e-3}, sample_every=20
    )
    wire, rows = optimizer.team.wire, []
    for step in range(steps + 1):
        if step % 20 == 0:
            loss = validation(task, model)
            rows.append({"run": name, "step": step, "loss": loss, "megabytes": wire.sent / 1e6, **errors(optimizer)})
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
    return rows


@torch.no_grad()
def validation(task: Task, model: nn.Module) -> float:
    """Mean loss of four batches."""
    assert task.validation is not None
    return statistics.fmean(float(task.loss(model, task.validation(i))) for i in range(4))


def errors(optimizer: Muon) -> dict[str, float]:
    """Medians over the layers of the last sampled step."""
    found = list(optimizer.inexactness().values())
    names = ("delta", "gap", "overshoot")
    return {n: statistics.median(getattr(f, n) for f in found) for n in names} if found else {}


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--figures", type=Path, default=Path("docs/figures"))
    arguments = parser.parse_args()
    began = time.perf_counter()

    def say(what: str) -> None:
        print(f"{time.perf_counter() - began:6.0f} s  {what}", flush=True)

    say("time of a step")
    seconds = on_ranks(timed, 2, arguments.repeats)[0]
    base = seconds["one process, one thread"]
    times = [
        {
            "way": name,
            "time / one thread": statistics.median(a / b for a, b in zip(found, base, strict=True)),
            "least": min(a / b for a, b in zip(found, base, strict=True)),
            "most": max(a / b for a, b in zip(found, base, strict=True)),
            "milliseconds": 1e3 * statistics.median(found),
        }
        for name, found in seconds.items()
    ]
    bytes_ = []
    for world in (2, 4):
        say(f"bytes and flops on {world} ranks")
        bytes_ += list(counts(world))
    curves = []
    for i, name in enumerate(RUNS):
        say(f"training {i + 1} of {len(RUNS)}: {name}")
        curves += on_ranks(trained, 2, name, arguments.steps)[0]
    ends = [row for row in curves if row["step"] == arguments.steps]
    text = ["# Several processes", "", "Written by `python benchmarks/distributed.py`.", "", "## Time of a step", ""]
    text += [
        f"One GPT layer of width {WIDTH}, float32, `PolarExpress(5)`; two cores, shared with others.",
        "",
        *table(times),
    ]
    text += ["", "## Bytes and flops of one step, all ranks together", ""]
    text += [
        "`kernel` is what Linux says the sockets have sent, with gloo's headers and two barriers.",
        "",
        *table(bytes_),
    ]
    text += ["", f"## A byte GPT after {arguments.steps} steps on two ranks", ""]
    text += [
        "Megabytes sent by a rank; medians over layers of the last sample. One step size for all.",
        "",
        *table(ends),
    ]
    arguments.results.mkdir(parents=True, exist_ok=True)
    (arguments.results / "distributed.md").write_text("\n".join(text) + "\n")
    everything = {"times": times, "bytes": bytes_, "curves": curves}
    (arguments.results / "distributed.json").write_text(json.dumps(everything, indent=1) + "\n")
    chart = figure(curves)
    chart.save(str(arguments.figures / "distributed.svg"))
    chart.save(str(arguments.figures / "distributed.png"), scale_factor=1.5)
    say("done")


if __name__ == "__main__":
    main()
