"""What a step launches, moves and holds on a GPU, recorded on fake CUDA tensors: no GPU is needed, nothing is timed.

A call of a foreach or fused kernel is one launch for each 2240 blocks of 65,536 entries if all of its lists have the
same shapes, strides and dtype, else one for each tensor. baddbmm that writes a new tensor is a copy and a product.
Bytes are what other operations than products read and write; a tensor given as out= is counted as both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

FREE = {"view", "_unsafe_view", "reshape", "transpose", "t", "permute", "expand", "slice", "select", "split", "unbind"}
FREE |= {"split_with_sizes", "unsqueeze", "squeeze", "detach", "alias", "as_strided", "diagonal", "narrow", "empty"}
FREE |= {"empty_like", "new_empty", "empty_strided", "new_empty_strided", "lift_fresh"}
WAITS = {"_local_scalar_dense", "item", "nonzero", "is_nonzero", "equal"}
PRODUCTS = {"bmm", "mm", "baddbmm", "addmm", "symmetric_product"}


class Indexing(TorchFunctionMode):
    """`~x`, `x.contiguous()` and others of a fake CUDA tensor want a device guard that a CPU build of torch lacks."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__invert__:
            return torch.ops.aten.bitwise_not(args[0])
        if func is torch.Tensor.contiguous and args[0].device.type == "cuda":
            return args[0] if args[0].is_contiguous() else torch.ops.aten.clone(args[0])
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True)
class Launch:
    """One operation: its name, the shapes and numbers given to it, launches and bytes."""

    name: str
    given: tuple[Any, ...]
    launches: int
    bytes: int


class Recorder(TorchDispatchMode):
    """The operations on the device, what waits for it, what is copied to it, and the most bytes made at once."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Launch] = []
        self.waits: list[str] = []
        self.copies: list[str] = []
        self.peak = 0
        self._alive: dict[StorageWeakRef, int] = {}

    @property
    def launches(self) -> int:
        return sum(operation.launches for operation in self.operations)

    @property
    def bytes(self) -> int:
        return sum(operation.bytes for operation in self.operations)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name, kwargs = func._schema.name.split("::")[1], kwargs or {}
        given, made = tensors((args, kwargs)), tensors(out)
        devices = {x.device.type for x in (*given, *made)}
        if "cuda" not in devices or func.namespace == "prim":
            return out
        old = {id(x) for x in given}
        self._hold([x for x in made if id(x) not in old])
        if {name, name.rstrip("_")} & FREE:
            return out
        self.waits += [name] * (name in WAITS)
        self.copies += [name] * (name in ("_to_copy", "copy_") and "cpu" in devices)
        written = made or tensors([v for v, a in zip(args, func._schema.arguments, strict=False) if writes(a)])
        moved = 0 if name.rstrip("_") in PRODUCTS else sum(x.numel() * x.element_size() for x in (*given, *written))
        numbers = tuple(x for x in tree_leaves((args, kwargs)) if not isinstance(x, Tensor))
        shapes = tuple((tuple(x.shape), x.dtype) for x in given)
        self.operations.append(Launch(name, (shapes, numbers), launches(name, args), moved))
        return out

    def _hold(self, made: Sequence[Tensor]) -> None:
        self._alive = {ref: size for ref, size in self._alive.items() if not ref.expired()}
        for x in made:
            storage = x.untyped_storage()
            self._alive.setdefault(StorageWeakRef(storage), storage.nbytes())
        self.peak = max(self.peak, sum(self._alive.values()))


def tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def writes(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write and argument.name != "grads"


def launches(name: str, args: Sequence[Any]) -> int:
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
def fake_h100(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    with FakeTensorMode(allow_non_fake_inputs=True), Indexing():
        yield


def on_fake_cuda(build: Callable[[], nn.Module], dtype: torch.dtype = torch.float32) -> nn.Module:
    """The model with empty parameters and gradients on the fake device; tied ones stay tied."""
    with torch.device("meta"):
        model = build()
    made: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, p in list(module._parameters.items()):
            if p is None:
                continue
            if id(p) not in made:
                made[id(p)] = nn.Parameter(torch.empty(p.shape, device="cuda", dtype=dtype))
                made[id(p)].grad = torch.empty(p.shape, device="cuda", dtype=dtype)
                made[id(p)]._was = p  # type: ignore[attr-defined]  # keeps its id from being used again
            module._parameters[name] = made[id(p)]
    return model


def second_step(optimizer: torch.optim.Optimizer) -> Recorder:
    """A step like all later ones: the first one makes states and batches."""
    optimizer.step()
    with Recorder() as recorder:
        optimizer.step()
    return recorder
