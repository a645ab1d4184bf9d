"""The second step of the real optimizer on one fake rank: its parameters as FSDP2, HSDP, DDP and TP lay them out."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed import fake_pg

from inexact_muon._text import read
from inexact_muon.dtensors import local
from inexact_muon.optim import EF21Muon, Muon
from inexact_muon.parallel.compressors import COMPRESSORS, Compressor
from inexact_muon.strategies import STRATEGIES, Strategy
from inexact_muon_lab.plan.models import Weight, looked_up
from inexact_muon_lab.plan.recorder import Recorder, fake_h100, size_of

MOST_RANKS = 4096
"""A step looks at each rank for each parameter."""


@dataclass(frozen=True)
class Layout:
    """`gpus` ranks: groups of `tp` neighbours divide each matrix, the other gpus / tp divide the batch.

    Attributes:
        copies: replicas of the weights, each divided by rows: 1 is FSDP2, gpus / tp is DDP, others are HSDP.
    """

    gpus: int
    tp: int = 1
    copies: int = 1

    def __post_init__(self) -> None:
        for name in ("gpus", "tp", "copies"):
            if not 1 <= (value := getattr(self, name)) <= MOST_RANKS:
                raise ValueError(f"{name} must lie between 1 and {MOST_RANKS:,}, got {value}")
        if self.gpus % self.tp:
            raise ValueError(f"tp = {self.tp} does not divide gpus = {self.gpus}")
        if self.dp % self.copies:
            raise ValueError(f"copies = {self.copies} does not divide the {self.dp} parts of the batch")

    @property
    def dp(self) -> int:
        """Number of parts of the batch."""
        return self.gpus // self.tp

    @property
    def mesh(self) -> dict[str, int]:
        """Dimensions of the device mesh that are more than one rank; none where parameters are plain tensors."""
        sizes = {"copy": self.copies, "shard": self.dp // self.copies, "tp": self.tp}
        return {name: size for name, size in sizes.items() if size > 1} if self.copies < self.gpus else {}


@dataclass(frozen=True)
class Case:
    """What is recorded: a rank's step.

    Attributes:
        strategy: how ranks share the work, or the compressor of EF21-Muon, as text.
        options: further arguments of `for_model`.
    """

    weights: Sequence[Weight]
    layout: Layout
    strategy: str = "auto"
    oracle: str = "auto"
    rank: int = 0
    triton: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Recording:
    """Recorded steps, each with the fraction of steps like it, and the bytes that the rank holds between steps."""

    steps: tuple[tuple[float, Recorder], ...]
    held: int
    matrices: int
    lmo_parameters: int


def read_way(text: str) -> Strategy | Compressor:
    """How ranks share the work: a strategy, or the compressor of EF21-Muon."""
    return read(text, {**STRATEGIES, **COMPRESSORS})


def record(case: Case) -> Recording:
    """The second step of a case; of block-periodic, one on blocks and one on whole matrices."""
    compressed = isinstance(read_way(case.strategy), Compressor)
    layout = Layout(case.layout.gpus, case.layout.tp, case.layout.dp) if compressed else case.layout
    names, sizes = tuple(layout.mesh), tuple(layout.mesh.values())
    with fake_ranks(case.rank, layout.gpus), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # names of a bare tree of modules leave doubts about roles
        mesh = init_device_mesh("cuda", sizes, mesh_dim_names=names) if names else None
        with fake_h100(case.triton):
            model, cls = module(case.weights, mesh), EF21Muon if compressed else Muon
            how = {"up" if compressed else "strategy": case.strategy, "polar": case.oracle, **case.options}
            optimizer = cls.for_model(model, 0.02, **how)
            period = getattr(optimizer.team.strategy, "period", 1)
            counts = [(1.0, None)] if period == 1 else [(1 / period, 0), (1 - 1 / period, 1)]
            steps = tuple((share, second_step(optimizer, count)) for share, count in counts)
    lmo = [(p, optimizer.view(g)) for g in optimizer.param_groups if g["algorithm"] == "lmo" for p in g["params"]]
    matrices = sum(prod(shape[:-2]) for p, view in lmo for shape in view.shapes(p.shape))
    state = [x for values in optimizer.state.values() for x in values.values() if isinstance(x, Tensor)]
    held = [local(x) for x in [y for p in model.parameters() for y in (p, p.grad)] + state]
    return Recording(steps, size_of(*held), matrices, sum(p.numel() for p, _ in lmo))


def second_step(optimizer: torch.optim.Optimizer, count: int | None = None) -> Recorder:
    """A step like all later ones: the first one makes states and batches; both have this "turn" of block-periodic."""
    recorder = Recorder()
    for mode in (nullcontext(), recorder):
        gc.collect()
        for group in optimizer.param_groups if count is not None else ():
            group["turn"] = count
        with mode:
            optimizer.step()
    return recorder


@contextmanager
def fake_ranks(rank: int, world: int) -> Iterator[None]:
    """A process group in which this is one rank, and messages go nowhere; none for one rank."""
    if world == 1:
        yield
        return
    if not torch.ops.c10d.allreduce_.default.has_kernel_for_dispatch_key(torch._C.DispatchKey.Meta):
        raise ValueError("this torch has no collectives for fake tensors: plan with a newer one")
    dist.init_process_group("fake", store=fake_pg.FakeStore(), rank=rank, world_size=world)
    try:
        yield
    finally:
        dist.destroy_process_group()


def module(weights: Sequence[Weight], mesh: Any = None) -> nn.Module:
    """Layers named like the weights, of the kinds that routing recognises, with empty parameters and gradients."""
    root = nn.Module()
    ordered = sorted(weights, key=lambda w: not w.name.endswith("weight"))  # it decides the kind of the layer
    for weight, name in ((w, name) for w in ordered for name in w.names):
        at, (*path, own) = root, name.split(".")
        for k, part in enumerate(path):
            if not hasattr(at, part):
                at.add_module(part, _layer(weight, own) if k == len(path) - 1 else nn.Module())
            at = getattr(at, part)
        p = nn.Parameter(_empty(weight, mesh))
        p.grad = _empty(weight, mesh)
        at.register_parameter(own, p)
    return root


def _layer(weight: Weight, own: str) -> nn.Module:
    shape = weight.shape
    with torch.device("meta"):
        if own == "weight" and len(shape) == 2:
            table = looked_up(weight.name)
            return nn.Embedding(*shape) if table else nn.Linear(shape[1], shape[0], bias=False)
        if own == "weight" and len(shape) == 4:
            return nn.Conv2d(shape[1], shape[0], shape[2:], bias=False)
        layer = nn.LayerNorm(shape, bias=False) if len(shape) == 1 else nn.Module()
    if len(shape) == 3:
        layer.num_experts = shape[0]  # type: ignore[assignment]
    return layer


def _empty(weight: Weight, mesh: Any) -> Tensor:
    """This rank's piece: rows are divided among shards, within what tensor parallelism divides, as by FSDP2."""
    if mesh is None:
        return torch.empty(weight.shape, device="cuda")
    sizes = dict(zip(mesh.mesh_dim_names, mesh.shape, strict=True))
    tp = Shard(weight.tp_side) if "tp" in sizes and len(weight.shape) > 1 else Replicate()
    rows = _StridedShard(0, split_factor=sizes["tp"]) if tp == Shard(0) else Shard(0)
    placements: list[Any] = [{"copy": Replicate(), "shard": rows, "tp": tp}[name] for name in sizes]
    own = list(weight.shape)
    for size, placement, k in list(zip(sizes.values(), placements, mesh.get_coordinate(), strict=True))[::-1]:
        if not placement.is_replicate():
            chunk = -(-own[placement.dim] // size)
            own[placement.dim] = max(0, min(chunk, own[placement.dim] - chunk * k))
    stride = [prod(weight.shape[i + 1 :]) for i in range(len(weight.shape))]
    piece, shape = torch.empty(own, device="cuda"), torch.Size(weight.shape)
    return DTensor.from_local(piece, mesh, placements, run_check=False, shape=shape, stride=tuple(stride))
