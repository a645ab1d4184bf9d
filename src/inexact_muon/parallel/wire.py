"""All communication of an optimizer, with byte counts.

An all-to-all counts what goes to other ranks; an all-gather of S bytes from each of k ranks (k-1) S; a point-to-point
message its size, on the sender; an all-reduce of S bytes 2 (k-1)/k S, as sent by each rank of a ring. Framing and
acknowledgements are not counted; a test compares with the kernel's socket statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor

Message = tuple[int, Tensor]
"""(other rank, tensor to send or buffer to fill)"""

Copy = tuple[Tensor, Tensor]
"""(target, source)"""

ALL_TO_ALL = ("gloo", "nccl", "mpi", "ucc", "xccl", "hccl", "fake")
"""Backends of torch.distributed that are known to support all-to-all and point-to-point messages."""


def has_all_to_all(group: Any) -> bool:
    """Whether ranks of a process group can send to each other; otherwise collectives of DTensors are used."""
    named = str(dist.get_backend(group)).lower()
    return any(name in named for name in ALL_TO_ALL)


class Pending:
    """Messages in flight, and (target, source) copies to make when all have arrived."""

    def __init__(self, works: Sequence[tuple[str, Any]], kept: Sequence[Tensor], copies: Sequence[Copy] = ()) -> None:
        self._works, self._kept, self._copies = works, kept, copies

    def wait(self) -> None:
        """Wait for all messages, and make the copies.

        Raises:
            RuntimeError: a rank ended or did not answer within the timeout of the process group.
        """
        for who, work in self._works:
            try:
                work.wait()
            except RuntimeError as error:
                raise peer_error(who, error) from error
        for target, source in self._copies:
            target.copy_(source)
        self._works, self._kept, self._copies = (), (), ()


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

    def exchange(self, sends: Iterable[Message], receives: Iterable[Message], copies: Sequence[Copy] = ()) -> Pending:
        """Start these messages; both ends must list theirs in the same order. Zero-size tensors are not sent."""
        outgoing = [(rank, x.contiguous()) for rank, x in sends if x.numel()]
        incoming = [(rank, x) for rank, x in receives if x.numel()]
        operations = [dist.P2POp(dist.isend, x, rank) for rank, x in outgoing]
        operations += [dist.P2POp(dist.irecv, x, rank) for rank, x in incoming]
        for _, x in outgoing:
            self.count(x.numel() * x.element_size())
        if not operations:
            return Pending((), (), copies)
        try:
            works = dist.batch_isend_irecv(operations)
        except RuntimeError as error:
            raise peer_error("a rank", error) from error
        others = [f"rank {rank}" for rank, _ in (*outgoing, *incoming)]
        same = len(works) == len(operations)  # some backends return one work for the whole batch
        named = zip(others if same else [others[0]] * len(works), works, strict=True)
        return Pending(list(named), [x for _, x in outgoing], copies)

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
    def _started(call: Callable[[], Any], kept: Tensor) -> Pending:
        try:
            return Pending([("a rank", call())], [kept])
        except RuntimeError as error:
            raise peer_error("a rank", error) from error

    def reduce(self, x: Tensor, groups: Sequence[Any], largest: bool = False) -> Tensor:
        """Sum, or maximum, of x over all ranks of the groups, one group after another; in place."""
        for group in groups:
            ranks = group.size()
            if ranks > 1 and x.numel():
                self.count(2 * (ranks - 1) / ranks * x.numel() * x.element_size())
                try:
                    dist.all_reduce(x, dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM, group)
                except RuntimeError as error:
                    raise peer_error("a rank", error) from error
        return x


def peer_error(who: str, error: RuntimeError) -> RuntimeError:
    """The error to raise if another rank has failed."""
    first = str(error).strip().splitlines()[0]
    return RuntimeError(
        f"{who} ended or did not answer in time during optimizer.step(); this step is lost: start again from the last "
        f"checkpoint, on as many ranks as are left ({first})"
    )
