"""A fused weight is cut as the code of its module cuts it, whatever its name; an output is what is returned."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inexact_muon.optim import routes

W, TOKENS, HEADS = 16, 50, 4


def attended(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of (batch, heads, time, size), heads beside each other."""
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True).transpose(1, 2).flatten(2)


class Attention(nn.Module):
    """One layer for query, key and value, called as in many libraries."""

    def __init__(self, rows: int = 3 * W) -> None:
        super().__init__()
        self.num_heads, self.qkv, self.proj = HEADS, nn.Linear(W, rows), nn.Linear(W, W)


class Thirds(Attention):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        return x + self.proj(attended(q, k, v))


class EachHead(Attention):
    """GPT-NeoX: query, key and value of each head in turn; as many rows as thirds."""

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        qkv = self.qkv(x).view(b, t, self.num_heads, 3 * c // self.num_heads)
        q, k, v = qkv.transpose(1, 2).chunk(3, dim=-1)
        return x + self.proj(attended(q, k, v))


class EachRow(Attention):
    """Query, key and value in turn, row by row."""

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = self.qkv(x).reshape(b, t, self.num_heads, c // self.num_heads, 3).transpose(1, 2).unbind(-1)
        return x + self.proj(attended(q, k, v))


class KeyFirst(Attention):
    """Another order, and sizes that are not equal."""

    def __init__(self) -> None:
        super().__init__(8 + 16 + 8)

    def forward(self, x: Tensor) -> Tensor:
        k, q, v = (part.unflatten(-1, (-1, 4)).transpose(1, 2) for part in self.qkv(x).split([8, 16, 8], dim=-1))
        return x + self.proj(attended(q, k, v))


class EachGroup(Attention):
    """litGPT: the queries, the key and the value of each group; the attribute has a name of its own."""

    def __init__(self) -> None:
        super().__init__(32)
        self.groups, self.size = 2, 4

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        per_group = self.num_heads // self.groups
        qkv = self.qkv(x).view(b, t, self.groups, per_group + 2, self.size).permute(0, 2, 3, 1, 4)
        q, k, v = qkv.split((per_group, 1, 1), dim=2)
        q, k, v = (part.reshape(b, -1, t, self.size) for part in (q, k, v))
        return x + self.proj(attended(q, k, v))


class WiderInside(nn.Module):
    """Cross-attention whose heads are wider together than the model."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.to_q, self.to_kv = 2, nn.Linear(W, 2 * W), nn.Linear(W, 4 * W)
        self.to_out = nn.Linear(2 * W, W)

    def forward(self, x: Tensor) -> Tensor:
        q, (k, v) = self.to_q(x), self.to_kv(x).chunk(2, dim=-1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (q, k, v))
        return x + self.to_out(attended(q, k, v))


class GPT(nn.Module):
    def __init__(self, block: type[nn.Module]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, W)
        self.blocks, self.head = nn.ModuleList(block() for _ in range(2)), nn.Linear(W, TOKENS)

    def features(self, ids: Tensor) -> Tensor:
        x: Tensor = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return x

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.features(ids))
        return out


CUTS = {
    Thirds: "split(rows=3)",
    EachHead: "split(rows=3, groups=4)",
    EachRow: "split(rows=3, groups=16)",
    KeyFirst: "split(rows=(8, 16, 8))",
    EachGroup: "split(rows=(8, 4, 4), groups=2)",
    WiderInside: "split(rows=2)",
}


@pytest.mark.parametrize("block", CUTS)
def test_a_fused_weight_is_cut_as_the_code_cuts(block: type[nn.Module]) -> None:
    model = GPT(block)
    model(torch.zeros(2, 3, dtype=torch.long))  # it runs
    (route,) = (r for r in routes(model) if r.name in ("blocks.1.qkv.weight", "blocks.1.to_kv.weight"))
    assert route.sure
    assert str(route.view) == CUTS[block]


class Contrastive(GPT):
    """Beside the logits a projection of the model's width is returned."""

    def __init__(self, block: type[nn.Module] = Thirds) -> None:
        super().__init__(block)
        self.project = nn.Linear(W, W)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        x = self.features(ids)
        return self.head(x), self.project(x)


class WideInside(GPT):
    """A hidden layer is as wide as the vocabulary, and another takes it."""

    def __init__(self, block: type[nn.Module] = Thirds) -> None:
        super().__init__(block)
        self.up, self.down = nn.Linear(W, TOKENS), nn.Linear(TOKENS, W)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.features(ids)
        out: Tensor = self.head(x + self.down(self.up(x).relu()))
        return out


class PlainWeight(GPT):
    """A projection that is a plain parameter, returned beside the logits."""

    def __init__(self, block: type[nn.Module] = Thirds) -> None:
        super().__init__(block)
        self.text_projection = nn.Parameter(torch.randn(W, W))

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        x = self.features(ids)
        return self.head(x), x.mean(1) @ self.text_projection


OUTPUTS = {
    Contrastive: {"head.weight", "project.weight"},
    WideInside: {"head.weight"},
    PlainWeight: {"head.weight", "text_projection"},
}


@pytest.mark.parametrize("model", OUTPUTS)
def test_an_output_with_a_row_for_each_embedding_does_not_hide_others(model: type[GPT]) -> None:
    assert {r.name for r in routes(model(Thirds)) if r.role == "head"} == OUTPUTS[model]
