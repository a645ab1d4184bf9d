"""The largest attention logits of each head, seen in the forward passes of training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

CHUNK = 256
"""Queries whose logits are computed at a time."""


class LogitWatch:
    """Largest logits of attention modules since they were last taken.

    While a module that is in training runs, calls of `scaled_dot_product_attention` and `softmax` are seen: of the
    first the logits scale q k^T plus mask are computed, of the second its argument is taken.

    Attributes:
        largest: name of a module -> the largest logit of each head.
    """

    def __init__(self, modules: Mapping[str, tuple[nn.Module, int]]) -> None:
        """modules: name -> (attention module, number of its query heads)."""
        self.largest: dict[str, Tensor] = {}
        self.handles: list[RemovableHandle] = []
        for name, (module, heads) in modules.items():
            calls = _Calls(heads, partial(self.record, name))
            self.handles.append(module.register_forward_pre_hook(calls.before, prepend=True))
            self.handles.append(module.register_forward_hook(calls.after, always_call=True))

    def remove(self) -> None:
        """Stop watching."""
        for handle in self.handles:
            handle.remove()

    def record(self, name: str, logits: Tensor) -> None:
        """The largest logit of each head in one more batch."""
        known = self.largest.get(name)
        self.largest[name] = logits if known is None else torch.maximum(known, logits)


class _Calls(TorchFunctionMode):
    """Sees the functions that compute attention weights, while a module that is in training runs."""

    def __init__(self, heads: int, record: Callable[[Tensor], None]) -> None:
        super().__init__()
        self.heads, self.record, self.depth = heads, record, 0

    def before(self, module: nn.Module, args: Any) -> None:
        if module.training:
            self.depth += 1
            self.__enter__()  # type: ignore[no-untyped-call]

    def after(self, module: nn.Module, args: Any, result: Any) -> None:
        if self.depth:
            self.depth -= 1
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not F.multi_head_attention_forward:
            return self._call(getattr(func, "__name__", ""), func, *args, **(kwargs or {}))
        # A function of torch hides those that it calls.
        originals = {name: getattr(F, name) for name in ("scaled_dot_product_attention", "softmax")}
        try:
            for name, original in originals.items():
                setattr(F, name, partial(self._call, name, original))
            return func(*args, **(kwargs or {}))
        finally:
            for name, original in originals.items():
                setattr(F, name, original)

    def _call(self, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if name == "scaled_dot_product_attention":
            self.record(_of_product(*args, **kwargs))
        elif name == "softmax" and isinstance(args[0], Tensor) and args[0].ndim in (3, 4):
            logits = args[0].detach()
            if logits.ndim == 3 and logits.shape[0] % self.heads == 0:
                logits = logits.unflatten(0, (-1, self.heads))  # type: ignore[no-untyped-call]
            if logits.ndim == 4 and logits.shape[1] == self.heads:
                self.record(logits.amax((0, 2, 3)).float())
        return function(*args, **kwargs)


@torch.no_grad()
def _of_product(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """max over batch, queries and keys of scale q k^T plus mask, for each head."""
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    largest = []
    for start in range(0, query.shape[-2], CHUNK):
        logits = scale * (query[..., start : start + CHUNK, :] @ key.mT).float()
        if is_causal:
            logits = logits.masked_fill(~torch.ones_like(logits, dtype=torch.bool).tril(start), -torch.inf)
        if attn_mask is not None:
            part = attn_mask[..., start : start + CHUNK, :] if attn_mask.shape[-2] > 1 else attn_mask
            logits = logits.masked_fill(~part, -torch.inf) if part.dtype == torch.bool else logits + part
        largest.append(logits.flatten(0, -4).amax((0, 2, 3)))
    return torch.stack(largest).amax(0)
