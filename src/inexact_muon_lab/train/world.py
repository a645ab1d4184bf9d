"""One process, or the processes started by torchrun."""

from __future__ import annotations

import os
import random
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from inexact_muon_lab.errors import LabError

_last: deque[Any] = deque(maxlen=16)
"""Handles of the last reductions. Whoever drops one last frees its tensor; where that is a thread of gloo while the
interpreter ends, torch 2.13 aborts the process: DDP keeps those threads alive after the group is destroyed."""


@dataclass(frozen=True)
class World:
    """Rank, number of processes, and device."""

    rank: int
    size: int
    device: torch.device

    def mean(self, values: list[float]) -> list[float]:
        """The mean over the processes, bitwise equal in each."""
        if self.size == 1:
            return values
        total = torch.tensor(values, dtype=torch.float64, device=self.device)
        work = dist.all_reduce(total, async_op=True)
        work.wait()
        _last.append(work)
        return [float(value) / self.size for value in total]

    def share(self, tensors: tuple[Tensor, ...], parts: int, part: int) -> tuple[Tensor, ...]:
        """This process's examples of the part-th of `parts` micro-batches, on the device."""
        count = len(tensors[0]) // (parts * self.size)
        start = (part * self.size + self.rank) * count
        return tuple(tensor[start : start + count].to(self.device, non_blocking=True) for tensor in tensors)


@contextmanager
def join(device: str, batch: int, accumulate: int) -> Iterator[World]:
    """The world of this process; within the context it is a member of torchrun's process group, if any."""
    size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    if batch % (size * accumulate):
        raise LabError(f"batch = {batch} is not a multiple of {size} processes times accumulate = {accumulate}")
    cuda = torch.cuda.is_available() if device == "auto" else device == "cuda"
    if cuda and not torch.cuda.is_available():
        raise LabError('device = "cuda": this machine has no usable GPU; use "auto" or "cpu"')
    if cuda and "LOCAL_RANK" in os.environ:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch_device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
    if size == 1:
        yield World(0, 1, torch_device)
        return
    dist.init_process_group("nccl" if cuda else "gloo")
    try:
        yield World(rank, size, torch_device)
    finally:
        dist.destroy_process_group()


def reseed(seed: int, step: int, rank: int) -> None:
    """Seed torch from seed, step and rank, so that no generator state needs saving."""
    words = np.random.SeedSequence([seed, step, rank]).generate_state(2, np.uint64)
    torch.default_generator.manual_seed(int(words[0]))  # torch.manual_seed would record a stack trace each time
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(int(words[0]))
    np.random.seed(int(words[1] % 2**32))  # noqa: NPY002 - somebody's own problem may use it
    random.seed(int(words[1]))
