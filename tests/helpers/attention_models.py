"""Attention written in several ways: usual ones, and ones whose heads must not be guessed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

WIDTH, HEADS = 32, 4


def rearrange(x: Tensor, pattern: str, **sizes: int) -> Tensor:
    """The patterns of einops that the models below use."""
    b, t, _ = x.shape if x.ndim == 3 else (x.shape[0], x.shape[2], 0)
    match pattern:
        case "b t (h d) -> b h t d":
            return x.reshape(b, t, sizes["h"], -1).transpose(1, 2)
        case "b t (d h) -> b h t d":
            return x.reshape(b, t, -1, sizes["h"]).permute(0, 3, 1, 2)
        case "b h t d -> b t (h d)":
            return x.transpose(1, 2).reshape(b, t, -1)
    raise ValueError(pattern)


class Attention(nn.Module):
    """Layers for query, key, value and the output, without biases."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))


class Fused(nn.Module):
    """One layer for query, key and value."""

    def __init__(self) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.n_head, self.n_embd = HEADS, WIDTH

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        y = scaled(q, k, v)
        result: Tensor = self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))
        return result


class ByPattern(nn.Module):
    """Patterns in a loop over the parts."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = HEADS
        self.to_qkv = nn.Linear(WIDTH, 3 * 64, bias=False)
        self.to_out = nn.Sequential(nn.Linear(64, WIDTH, bias=False), nn.Dropout(0.0))

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.to_qkv(x).chunk(3, dim=-1)
        q, k, v = map(lambda t: rearrange(t, "b t (h d) -> b h t d", h=self.heads), qkv)  # noqa: C417
        result: Tensor = self.to_out(rearrange(scaled(q, k, v), "b h t d -> b t (h d)"))
        return result


class Rotated(nn.Module):
    """Grouped queries and a rotation of pairs, as complex numbers, inside of the module."""

    def __init__(self) -> None:
        super().__init__()
        self.n_heads, self.n_kv_heads, self.head_dim = HEADS, 2, WIDTH // HEADS
        self.wq, self.wo = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.wk, self.wv = (nn.Linear(WIDTH, 2 * self.head_dim, bias=False) for _ in range(2))

    def rotated(self, x: Tensor) -> Tensor:
        turned = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)) * 1j
        return torch.view_as_real(turned).flatten(3)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, _ = x.shape
        xq, xk, xv = self.wq(x), self.wk(x), self.wv(x)
        xq = xq.view(batch, time, -1, self.head_dim)
        xk = xk.view(batch, time, -1, self.head_dim)
        xv = xv.view(batch, time, -1, self.head_dim)
        xq, xk = self.rotated(xq), self.rotated(xk)
        y = scaled(xq.transpose(1, 2), xk.transpose(1, 2), xv.transpose(1, 2), enable_gqa=True)
        result: Tensor = self.wo(y.transpose(1, 2).reshape(batch, time, -1))
        return result


class Nameless(nn.Module):
    """Names and attributes tell nothing; the code does."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        size = (*x.shape[:2], 4, 8)
        a, b = self.a(x).view(size).transpose(1, 2), self.b(x).view(size).transpose(1, 2)
        y = nn.functional.scaled_dot_product_attention(a, b, self.c(x).view(size).transpose(1, 2))
        result: Tensor = self.d(y.transpose(1, 2).reshape(*x.shape[:2], 32))
        return result


class Sizes(Attention):
    """Keys and values of different sizes, alternating by head."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads = HEADS
        self.kv_proj, self.o_proj = nn.Linear(WIDTH, HEADS * 20, bias=False), nn.Linear(HEADS * 12, WIDTH, bias=False)
        del self.k_proj, self.v_proj

    def forward(self, x: Tensor) -> Tensor:
        q = self.q_proj(x).unflatten(-1, (self.num_heads, 8)).transpose(1, 2)
        k, v = self.kv_proj(x).unflatten(-1, (self.num_heads, 20)).transpose(1, 2).split([8, 12], dim=-1)
        result: Tensor = self.o_proj(scaled(q, k, v).transpose(1, 2).flatten(2))
        return result


class Strided(Attention):
    """The rows of a head are every fourth one."""

    num_heads = HEADS

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (rearrange(f(x), "b t (d h) -> b h t d", h=4) for f in (self.q_proj, self.k_proj, self.v_proj))
        result: Tensor = self.o_proj(rearrange(scaled(q, k, v), "b h t d -> b t (h d)"))
        return result


class OtherNumber(Attention):
    """An attribute says 4 heads, the code makes 8."""

    num_heads = HEADS

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (8, -1)).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj))
        result: Tensor = self.o_proj(scaled(q, k, v).transpose(1, 2).flatten(2))
        return result


class OneHead(Attention):
    """Attention that is not divided."""

    def forward(self, x: Tensor) -> Tensor:
        scores = torch.softmax(self.q_proj(x) @ self.k_proj(x).transpose(-1, -2), -1)
        result: Tensor = self.o_proj(scores @ self.v_proj(x))
        return result


def without_source() -> type[nn.Module]:
    """A class whose code cannot be read."""
    space: dict[str, Any] = {"Attention": Attention, "scaled": scaled}
    exec(
        "class Unread(Attention):\n"
        "    num_heads = 4\n"
        "    def forward(self, x):\n"
        "        parts = (f(x).unflatten(-1, (4, 8)) for f in (self.q_proj, self.k_proj, self.v_proj))\n"
        "        q, k, v = (part.transpose(1, 2) for part in parts)\n"
        "        return self.o_proj(scaled(q, k, v).transpose(1, 2).flatten(2))\n",
        space,
    )
    kind: type[nn.Module] = space["Unread"]
    return kind


def scaled(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Attention by a function of another name than torch's."""
    return nn.functional.scaled_dot_product_attention(q, k, v, **options)


class Model(nn.Module):
    """An embedding, attention in a residual block, and a head."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(50, WIDTH), nn.Linear(WIDTH, 50)
        self.blocks = nn.ModuleList([inner])

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed(input_ids)
        for block in self.blocks:
            x = x + block(x)
        result: Tensor = self.head(x)
        return result


class Multihead(nn.Module):
    """nn.MultiheadAttention of one input."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, bias=False, **options)

    def forward(self, x: Tensor) -> Tensor:
        wide = torch.cat([x, x], -1) if self.attention.kdim != WIDTH else x
        result: Tensor = self.attention(x, wide, wide, need_weights=False)[0]
        return result
