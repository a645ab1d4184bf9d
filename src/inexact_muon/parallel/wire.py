"""All communication of an optimizer, with byte counts.

An all-to-all counts what goes to other ranks; an all-gather of S bytes from each of k ranks (k-1) S; an all-reduce of S
bytes 2 (k-1)/k S, as sent by each rank of a ring. Framing and acknowledgements are not counted; a test compares with
the kernel's socket statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor

ALL_TO_ALL = ("gloo", "nccl", "mpi", "ucc", "xccl", "hccl", "fake")
"""Backends of torch.distributed that are known to support all-to-all."""


def has_all_to_all(group: Any) -> bool:
    """Whether ranks of a process group can send to each other; otherwise collectives of DTensors are used."""
    named = str(dist.get_backend(group)).lower()
    return any(name in named for name in ALL_TO_ALL)


class Pending:
    """A collective in flight, and the tensor that it reads."""

    def __init__(self, work: Any, sent: Tensor) -> None:
        self._work, self._sent = work, sent

    def wait(self) -> None:
        """Wait until it has ended.

        Raises:
            RuntimeError: a rank ended or did not answer within the timeout of the process group.
        """
        try:
            self._work.wait()
        except RuntimeError as error:
            raise peer_error(error) from error
        del self._work, self._sent


class Wire:
    """Sends messages and counts them.

    Attributes:
        sent: bytes sent by this rank since `reset`.
        messages: number of messages.
    """

    def __init__(self) -> None:
        self.sent = 0
        self.messages = 0

    def reset(self) -> None:
        """Reset the counters."""
        self.sent = self.messages = 0

    def count(self, size: float) -> None:
        """Count one message of this many bytes."""
        self.sent += round(size)
        self.messages += 1

    def swap(self, x: Tensor, sent: list[int], received: list[int], group: Any) -> tuple[Tensor, Pending]:
        """Start one all-to-all: `sent[r]` entries of x go to rank r of the group, `received[r]` come from it."""
        self.count((sum(sent) - sent[group.rank()]) * x.element_size())
        out = x.new_empty(sum(received))
        return out, self._started(lambda: dist.all_to_all_single(out, x, received, sent, group, async_op=True), x)

    def gather(self, x: Tensor, group: Any) -> tuple[Tensor, Pending]:
        """Start one all-gather: x of every rank of the group, one after another."""
        ranks = group.size()
        self.count((ranks - 1) * x.numel() * x.element_size())
        out = x.new_empty(ranks * x.numel())
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # its name before torch 2.13
        return out, self._started(lambda: gather(out, x, group=group, async_op=True), x)

    @staticmethod
    def _started(call: Callable[[], Any], sent: Tensor) -> Pending:
        try:
            return Pending(call(), sent)
        except RuntimeError as error:
            raise peer_error(error) from error

    def reduce(self, x: Tensor, groups: Sequence[Any], largest: bool = False) -> Tensor:
        """Sum, or maximum, of x over all ranks of the groups, one group after another; in place."""
        for group in groups:
            ranks = group.size()
            if ranks > 1 and x.numel():
                self.count(2 * (ranks - 1) / ranks * x.numel() * x.element_size())
                try:
                    dist.all_reduce(x, dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM, group)
                except RuntimeError as error:
                    raise peer_error(error) from error
        return x


def peer_error(error: RuntimeError) -> RuntimeError:
    """The error to raise if another rank has failed."""
    first = str(error).strip().splitlines()[0]
    return RuntimeError(
        f"a rank ended or did not answer in time during optimizer.step(); this step is lost: start again from the last "
        f"checkpoint, on as many ranks as are left ({first})"
    )
