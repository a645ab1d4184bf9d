"""QK-clip (MuonClip of Kimi K2, arXiv 2507.20534): attention logits are kept below a limit by scaling weights.

For each head h with largest logit S_h in the batches since the last step, gamma_h = min(1, limit/S_h), and

    W_q^h <- sqrt(gamma_h) W_q^h,   W_k^h <- sqrt(gamma_h) W_k^h

so that each logit of the head is multiplied by gamma_h. What several heads share is not touched, and the query gets the
whole factor instead: with grouped queries W_q^h <- gamma_h W_q^h; in latent attention the rows of the query that meet
the shared rotary key are multiplied by gamma_h, the other ones and the key's by sqrt(gamma_h). Biases are scaled with
the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from inexact_muon.dtensors import local, piece_of
from inexact_muon.optim.attention_logits import LogitWatch
from inexact_muon.routing.attention import heads_of
from inexact_muon.routing.blocks import Block
from inexact_muon.routing.layers import Site
from inexact_muon.routing.routes import decisions
from inexact_muon.views import Transposed


@dataclass(frozen=True, eq=False)
class _Rows:
    """Heads of one weight."""

    weight: nn.Parameter
    bias: nn.Parameter | None
    transposed: bool
    blocks: Sequence[Block]

    def heads(self, role: str) -> list[Block]:
        """Those of a role, in order."""
        return [block for block in self.blocks if block.role == role]

    def scale_(self, factors: Tensor) -> None:
        """Multiply each row by its factor."""
        rows = factors.to(self.weight.dtype)
        _multiply_(self.weight, rows if self.transposed else rows[:, None])
        if self.bias is not None:
            _multiply_(self.bias, rows)


@dataclass(frozen=True, eq=False)
class _Pair:
    """The layers of one attention module that make queries and keys; they may be the same."""

    module: nn.Module
    query: _Rows
    key: _Rows

    def clip_(self, gamma: Tensor) -> None:
        """Multiply the logits of each head by its gamma."""
        queries, keys = self.query.heads("query"), self.key.heads("key")
        own_keys, root = len(keys) == len(queries), gamma.sqrt()
        layers = {self.query, self.key} if own_keys else {self.query}
        factors = {layer: gamma.new_ones(sum(block.size for block in layer.blocks)) for layer in layers}
        for h, query in enumerate(queries):
            own = 0
            parts: tuple[int, ...] = (query.size,)
            if own_keys:
                key = keys[h]
                factors[self.key][key.first : key.first + key.size] = root[h]
                if query.size != key.size and key.size in query.parts:  # the others meet a key that all heads share
                    own, parts = query.parts.index(key.size), query.parts
            first = query.first
            for i, size in enumerate(parts):
                factors[self.query][first : first + size] = root[h] if own_keys and i == own else gamma[h]
                first += size
        for layer, rows in factors.items():
            layer.scale_(rows)


class QKClip:
    """A hook after each step that keeps attention logits below a limit.

        clip = QKClip(model, limit=100.0)
        optimizer.register_step_post_hook(clip)

    Query and key weights are found as by `Muon.for_model(heads=True)`; the equations are in the module's docstring. The
    logits are those of the batches since the last step, in forward passes of modules that are in training: of
    `scaled_dot_product_attention`, whose logits are computed once more, or of `softmax`. On several ranks the largest
    of all counts.

    Args:
        limit: tau of the paper, 100 there.
        logits: called after each step in place of measuring, for kernels that torch does not see: attention module's
            name -> the largest logit of each query head since the last step.
        process_group: ranks that train the same model.

    Attributes:
        largest: name of an attention module -> largest logit of each head before the last clip.
    """

    def __init__(
        self,
        model: nn.Module,
        limit: float = 100.0,
        *,
        logits: Callable[[], Mapping[str, Tensor]] | None = None,
        process_group: Any = None,
    ) -> None:
        if not limit > 0.0:
            raise ValueError(f"QKClip: limit must be positive, got {limit}")
        self.limit, self.logits, self.process_group = limit, logits, process_group
        self.pairs = dict(_pairs(model))
        if not self.pairs:
            raise ValueError("QKClip found no query and key with known heads: see explain of for_model(heads=True)")
        counts = {name: (pair.module, len(pair.query.heads("query"))) for name, pair in self.pairs.items()}
        self.watch = LogitWatch(counts if logits is None else {})
        self.largest: dict[str, Tensor] = {}

    @torch.no_grad()
    def __call__(self, optimizer: Any = None, args: Any = (), kwargs: Any = None) -> None:
        """Clip by the logits since the last call."""
        logits = self.watch.largest if self.logits is None else self.logits()
        self.largest, self.watch.largest = self._over_ranks(logits), {}
        for name, largest in self.largest.items():
            if name not in self.pairs:
                raise KeyError(f"QKClip has no attention module {name!r}: it has {', '.join(self.pairs)}")
            pair, heads = self.pairs[name], len(self.pairs[name].query.heads("query"))
            if len(largest) != heads:
                raise ValueError(f"QKClip: {name} has {heads} heads, got the logits of {len(largest)}")
            over = (largest > self.limit) & largest.isfinite()
            pair.clip_(torch.where(over, self.limit / largest.float(), 1.0))

    @property
    def clipped(self) -> int:
        """Number of heads that the last call clipped."""
        return sum(int((largest > self.limit).sum()) for largest in self.largest.values())

    def remove(self) -> None:
        """Stop watching the model."""
        self.watch.remove()

    def _over_ranks(self, largest: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The largest on any rank; ranks may have seen different modules."""
        if not dist.is_available() or not dist.is_initialized() or dist.get_world_size(self.process_group) == 1:
            return dict(largest)
        device = next(iter(self.pairs.values())).query.weight.device
        low = torch.tensor(-torch.inf, device=device)
        sizes = [len(pair.query.heads("query")) for pair in self.pairs.values()]
        rows = [largest.get(name, low.expand(size)).to(device) for name, size in zip(self.pairs, sizes, strict=True)]
        flat = torch.cat(rows)
        dist.all_reduce(flat, dist.ReduceOp.MAX, group=self.process_group)
        return dict(zip(self.pairs, torch.split(flat, sizes), strict=True))


def _pairs(model: nn.Module) -> Iterator[tuple[str, _Pair]]:
    """Name of each attention module with known query and key heads."""
    names = {module: name for name, module in model.named_modules()}
    layers: dict[nn.Module, list[_Rows]] = {}
    for site, decision, blocks in heads_of(decisions(model)):
        bias = site.module._parameters.get("in_proj_bias" if site.own == "in_proj_weight" else "bias")
        layer = _Rows(site.parameter, bias, isinstance(decision.view, Transposed), blocks)
        layers.setdefault(_attention(site), []).append(layer)
    for module, rows in layers.items():
        query, keys = ([layer for layer in rows if layer.heads(role)] for role in ("query", "key"))
        if len(query) == 1 and len(keys) == 1:
            name = names.get(module, "")
            if any(block.normed for block in (*query[0].heads("query"), *keys[0].heads("key"))):
                raise ValueError(f"QKClip: {name} normalises queries or keys, so that scaling weights has no effect")
            yield name, _Pair(module, query[0], keys[0])


def _attention(site: Site) -> nn.Module:
    """The module that computes attention with a layer."""
    if isinstance(site.module, nn.MultiheadAttention):
        return site.module
    return site.chain[-1 - site.levels][1]


def _multiply_(x: Tensor, factor: Tensor) -> None:
    """x <- factor x, also of a sharded x; nothing is sent."""
    if hasattr(x, "device_mesh"):
        local(x).mul_(piece_of(factor.expand(x.shape).contiguous(), x))
    else:
        x.mul_(factor)
