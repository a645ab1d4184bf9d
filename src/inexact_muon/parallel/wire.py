"""Everything that an optimizer sends goes through here and is counted.

A message counts where it leaves: its bytes, once for each receiver. An all-reduce of S bytes among k ranks counts
2 (k-1)/k S, what a ring sends from each rank. Framing and acknowledgements are not counted; a test compares with what
the kernel says about the sockets.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor

Message = tuple[int, Tensor]
"""(the other rank, what it gets or the buffer that it fills)"""


MESSAGES = ("gloo", "nccl", "mpi", "ucc", "xccl", "hccl", "fake")
"""Backends of torch.distributed that are known to send from rank to rank."""


def has_messages(group: Any) -> bool:
    """Whether ranks of a process group can send to each other; collectives do it where they cannot."""
    named = str(dist.get_backend(group)).lower()
    return any(name in named for name in MESSAGES)


class Pending:
    """Messages under way."""

    def __init__(self, works: Sequence[tuple[int, Any]], kept: Sequence[Tensor]) -> None:
        self._works, self._kept = works, kept

    def wait(self) -> None:
        """Until all of them are through.

        Raises:
            RuntimeError: a rank ended or did not answer within the timeout of the process group.
        """
        for rank, work in self._works:
            try:
                work.wait()
            except RuntimeError as error:
                raise lost(f"rank {rank}", error) from error
        self._works, self._kept = (), ()


class Wire:
    """Sends and counts.

    Attributes:
        sent: bytes that this rank has sent since `reset`.
        messages: how many messages they were.
    """

    def __init__(self) -> None:
        self.sent = 0
        self.messages = 0

    def reset(self) -> None:
        """Counts from zero again."""
        self.sent = self.messages = 0

    def count(self, size: float) -> None:
        """Adds one message of so many bytes."""
        self.sent += round(size)
        self.messages += 1

    def exchange(self, sends: Iterable[Message], receives: Iterable[Message]) -> Pending:
        """Starts all of these messages; both ends list what goes between them in the same order. Empty ones stay."""
        outgoing = [(rank, x.contiguous()) for rank, x in sends if x.numel()]
        incoming = [(rank, x) for rank, x in receives if x.numel()]
        operations = [dist.P2POp(dist.isend, x, rank) for rank, x in outgoing]
        operations += [dist.P2POp(dist.irecv, x, rank) for rank, x in incoming]
        for _, x in outgoing:
            self.count(x.numel() * x.element_size())
        if not operations:
            return Pending((), ())
        try:
            works = dist.batch_isend_irecv(operations)
        except RuntimeError as error:
            raise lost("a rank", error) from error
        others = [rank for rank, _ in (*outgoing, *incoming)]
        same = len(works) == len(operations)  # some backends answer with one work for the whole batch
        return Pending(
            list(zip(others if same else [others[0]] * len(works), works, strict=True)), [x for _, x in outgoing]
        )

    def reduce(self, x: Tensor, groups: Sequence[Any], largest: bool = False) -> Tensor:
        """Sum, or maximum, of x over all ranks of the groups, one group after the other; in place."""
        for group in groups:
            ranks = dist.get_world_size(group)
            if ranks > 1 and x.numel():
                self.count(2 * (ranks - 1) / ranks * x.numel() * x.element_size())
                try:
                    dist.all_reduce(x, dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM, group)
                except RuntimeError as error:
                    raise lost("a rank", error) from error
        return x


def lost(who: str, error: RuntimeError) -> RuntimeError:
    """The error of a rank whose partner is gone."""
    first = str(error).strip().splitlines()[0]
    return RuntimeError(
        f"{who} ended or did not answer in time during optimizer.step(); this step is lost: start again from the last "
        f"checkpoint, on as many ranks as are left ({first})"
    )
