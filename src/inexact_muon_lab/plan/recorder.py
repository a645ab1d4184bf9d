# mypy: disable-error-code="no-untyped-call"
"""What a step launches, sends and holds on a GPU, recorded on fake CUDA tensors: nothing is timed, no GPU is needed.

A call of a foreach or fused kernel is one launch for each 2240 blocks of 65,536 entries if all of its lists have the
same shapes, strides and dtype, else one for each tensor. baddbmm that writes a new tensor is a copy and a product.
Bytes are what other operations than products read and write; a tensor given as out= is counted as both. Of k ranks
each sends 2 (k-1)/k S in an all-reduce of S bytes, (k-1) S in an all-gather, and all but its own part in an all-to-all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from inexact_muon.polar import kernel

FREE = {"view", "_unsafe_view", "reshape", "transpose", "t", "permute", "expand", "slice", "select", "split", "unbind"}
FREE |= {"split_with_sizes", "unsqueeze", "squeeze", "detach", "alias", "as_strided", "diagonal", "narrow", "empty"}
FREE |= {"empty_like", "new_empty", "empty_strided", "new_empty_strided", "lift_fresh", "unflatten"}
WAITS = {"_local_scalar_dense", "item", "nonzero", "is_nonzero", "equal"}
PRODUCTS = {"bmm", "mm", "baddbmm", "addmm", "symmetric_product"}
STARTED = ("all_reduce", "all_gather_into_tensor", "all_gather_single", "all_to_all_single")
"""Functions of torch.distributed that start messages."""


@dataclass(frozen=True)
class Launch:
    """One operation: its name, the shapes and numbers given to it, launches and bytes."""

    name: str
    inputs: tuple[Any, ...]
    launches: int
    bytes: int

    @property
    def product(self) -> tuple[int, int, int, int, int] | None:
        """(batch, n, k, m, bytes of an entry) of batch products n x k times k x m; None if it is none."""
        name = self.name.rstrip("_")
        if name not in PRODUCTS:
            return None
        (a, dtype), (b, _) = self.inputs[0][1:3] if name in ("baddbmm", "addmm") else self.inputs[0][:2]
        return (a[0] if len(a) > 2 else 1), a[-2], a[-1], b[-1], dtype.itemsize

    @property
    def flops(self) -> int:
        """Of a product; half of them for a symmetric one."""
        batch, n, k, m, _ = self.product or (0,) * 5
        return batch * n * k * m * (1 if self.name == "symmetric_product" else 2)


@dataclass(frozen=True)
class Messages:
    """Started by one call: bytes that this rank sends and receives."""

    number: int
    sent: float
    received: float


@dataclass(frozen=True)
class Waited:
    """The device waits for the messages of this number."""

    number: int


class Indexing(TorchFunctionMode):
    """Functions of fake CUDA tensors that want a device guard, which a CPU build of torch lacks.

    Real tensors, such as the table of ranks of a mesh, are computed with: their values are needed.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        x = args[0] if args else None
        if type(x) is Tensor and not isinstance(x, FakeTensor) and len(tensors((args, kwargs))) == 1:
            with unset_fake_temporarily():
                return func(*args, **(kwargs or {}))
        if isinstance(x, FakeTensor) and x.device.type == "cuda":
            if func is Tensor.__invert__:
                return torch.ops.aten.bitwise_not(x)
            if func is Tensor.contiguous:
                return x if x.is_contiguous() else torch.ops.aten.clone(x, memory_format=torch.contiguous_format)
            if func is Tensor.copy_:
                return torch.ops.aten.copy_(*args, **(kwargs or {}))
            if func is Tensor.__getitem__:  # a view, as slices of a tensor without memory are
                like = torch.empty_strided(x.shape, x.stride(), device="meta")[args[1]]
                return x.as_strided(like.shape, like.stride(), x.storage_offset() + like.storage_offset())
        return func(*args, **(kwargs or {}))


class Recorder(TorchDispatchMode):
    """The operations on the device, messages, what the host waits for, what is copied to the device, and work space.

    Attributes:
        peak: most bytes at once of tensors made while recording.
    """

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Launch | Messages | Waited] = []
        self.waits: list[str] = []
        self.copies: list[str] = []
        self.peak = self._total = self._number = 0
        self._alive: dict[StorageWeakRef, int] = {}
        self._started: tuple[float, float] | None = None
        self._functions: dict[str, Any] = {}

    @property
    def operations(self) -> list[Launch]:
        """Without communication."""
        return [event for event in self.events if isinstance(event, Launch)]

    @property
    def messages(self) -> list[Messages]:
        """In the order of their start."""
        return [event for event in self.events if isinstance(event, Messages)]

    @property
    def launches(self) -> int:
        """Number of kernels, without communication."""
        return sum(operation.launches for operation in self.operations)

    @property
    def bytes(self) -> int:
        """Elementwise traffic."""
        return sum(operation.bytes for operation in self.operations)

    def __enter__(self) -> Any:
        self._functions = {name: getattr(dist, name) for name in STARTED if hasattr(dist, name)}
        for name, function in self._functions.items():
            setattr(dist, name, self._watched(function))
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for name, function in self._functions.items():
            setattr(dist, name, function)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name, kwargs = func._schema.name.split("::")[1], kwargs or {}
        if func.namespace in ("c10d", "_c10d_functional"):
            self._communicated(name, args)
            return out
        inputs, outputs = tensors((args, kwargs)), tensors(out)
        devices = {x.device.type for x in (*inputs, *outputs)}
        if "cuda" not in devices or func.namespace == "prim":
            return out
        old = {x.untyped_storage()._cdata for x in inputs}
        self._hold([x for x in outputs if x.untyped_storage()._cdata not in old and not hasattr(x, "_local_tensor")])
        if {name, name.rstrip("_")} & FREE:
            return out
        self.waits += [name] * (name in WAITS)
        self.copies += [name] * (name in ("_to_copy", "copy_") and "cpu" in devices)
        written = outputs or tensors([v for v, a in zip(args, func._schema.arguments, strict=False) if writes(a)])
        moved = 0 if name.rstrip("_") in PRODUCTS else size_of(*inputs, *written)
        numbers = tuple(x for x in tree_leaves((args, kwargs)) if not isinstance(x, Tensor))
        shapes = tuple((tuple(x.shape), x.dtype) for x in inputs)
        self.events.append(Launch(name, (shapes, numbers), launches(name, args), moved))
        return out

    def _hold(self, outputs: Sequence[Tensor]) -> None:
        for x in outputs:
            storage = x.untyped_storage()
            if (ref := StorageWeakRef(storage)) not in self._alive:
                self._alive[ref] = storage.nbytes()
                self._total += self._alive[ref]
        if self._total > self.peak:  # may count what is gone
            self._alive = {ref: size for ref, size in self._alive.items() if not ref.expired()}
            self._total = sum(self._alive.values())
            self.peak = max(self.peak, self._total)

    def _communicated(self, name: str, args: Sequence[Any]) -> None:
        """Note (bytes sent, bytes received) of the call in progress."""
        if self._started is None or name not in ("allreduce_", "_allgather_base_", "alltoall_base_"):
            raise NotImplementedError(f"the recorder does not know what c10d::{name} sends")
        if name == "alltoall_base_":
            me = dist.ProcessGroup.unbox(args[2]).rank()
            into, away = (x.element_size() * (sum(k) - k[me]) for x, k in zip(args[:2], args[3:5], strict=True))
            self._started = (away, into)
        else:
            summed = name == "allreduce_"
            k = dist.ProcessGroup.unbox(args[1 if summed else 2]).size()
            sent = 2 * (k - 1) / k * size_of(*args[0]) if summed else (k - 1) * size_of(args[1])
            self._started = (sent, sent)

    def _watched(self, function: Any) -> Any:
        """A function of torch.distributed that is one call of messages, and whose work says when it is waited for."""

        def call(*args: Any, **kwargs: Any) -> Any:
            self._started = (0.0, 0.0)
            work = function(*args, **kwargs)
            (sent, received), self._started, self._number = self._started, None, self._number + 1
            self.events.append(Messages(self._number, sent, received))
            if work is None:
                self.events.append(Waited(self._number))
                return None
            return _Work(self, work)

        return call


class _Work:
    """A work of torch.distributed that tells the recorder when it is waited for."""

    def __init__(self, recorder: Recorder, work: Any) -> None:
        self._recorder, self._number, self._work = recorder, recorder._number, work

    def wait(self, *args: Any) -> Any:
        self._recorder.events.append(Waited(self._number))
        return self._work.wait(*args)


def tensors(tree: Any) -> list[Tensor]:
    """The tensors of nested arguments."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def size_of(*xs: Tensor) -> int:
    """Bytes of all entries."""
    return sum(x.numel() * x.element_size() for x in xs)


def writes(argument: Any) -> bool:
    """Whether an operation writes this argument of its schema."""
    return argument.alias_info is not None and argument.alias_info.is_write and argument.name != "grads"


def launches(name: str, args: Sequence[Any]) -> int:
    """Number of kernels of an operation."""
    lists = [a for a in args if isinstance(a, list | tuple) and a and all(isinstance(x, Tensor) for x in a)]
    if not name.startswith(("_foreach", "_fused")) or not lists:
        return 2 if name in ("baddbmm", "addmm") else 1
    if name.startswith("_fused"):
        lists = [a for a in lists if a[0].ndim]  # not the counts of steps
    kinds = [[(x.dtype, x.shape, x.stride()) for x in a] for a in lists]
    if any(kind != kinds[0] for kind in kinds) or len({x.dtype for x in lists[0]}) > 1:
        return len(lists[0])
    return ceil(sum(ceil(max(1, x.numel()) / 65536) for x in lists[0]) / 2240)


@contextmanager
def fake_h100(triton: bool = False) -> Iterator[None]:
    """New tensors have no values, and those on "cuda" are on an H100 that is not there.

    Args:
        triton: whether Triton counts as installed.
    """
    before = torch.cuda.get_device_capability, kernel.INSTALLED
    torch.cuda.get_device_capability, kernel.INSTALLED = lambda *_: (9, 0), triton
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), Indexing():
            yield
    finally:
        torch.cuda.get_device_capability, kernel.INSTALLED = before
