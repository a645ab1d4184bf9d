"""Small models of the kinds people train, for routing."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """Pre-norm attention and MLP, fused or separate query, key and value."""

    def __init__(self, width: int, fused: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        if fused:
            self.qkv = nn.Linear(width, 3 * width)
        else:
            self.q, self.k, self.v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.proj = nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        q, k, v = self.qkv(y).chunk(3, -1) if hasattr(self, "qkv") else (self.q(y), self.k(y), self.v(y))
        x = x + self.proj((q @ k.mT).softmax(-1) @ v)
        return x + self.fc2(self.fc1(self.norm2(x)).relu())


class GPT(nn.Module):
    """Token and position embeddings, two blocks, an output layer that may be tied."""

    def __init__(self, tied: bool = False, width: int = 16, words: int = 40) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(words, width), nn.Embedding(8, width)
        self.blocks = nn.ModuleList(Block(width, fused=False) for _ in range(2))
        self.norm = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, words, bias=False)
        if tied:
            self.lm_head.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[-1]))
        for block in self.blocks:
            x = block(x)
        return self.lm_head(self.norm(x))


class ViT(nn.Module):
    """Patches by convolution, fused query-key-value, a classifier."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, stride=4)
        self.blocks = nn.ModuleList(Block(width, fused=True) for _ in range(2))
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).mT
        for block in self.blocks:
            x = block(x)
        return self.head((x + self.attention(x, x, x)[0]).mean(1))


class ResNet(nn.Module):
    """Convolutions with batch norm, one of them depthwise, and a linear output with no telling name."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv = nn.Conv2d(8, 12, 3, padding=1)
        self.depthwise = nn.Conv2d(12, 12, 3, padding=1, groups=12)
        self.fc = nn.Linear(12, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn1(self.stem(x)).relu()
        return self.fc(self.depthwise(self.conv(x).relu()).mean((-2, -1)))


class MoE(nn.Module):
    """A stack of expert matrices in one 3-D parameter, and a router."""

    def __init__(self, experts: int = 4, width: int = 8) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, width)
        self.router = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, 2 * width, width) / 4)
        self.down = nn.Parameter(torch.randn(experts, width, 2 * width) / 4)
        self.out = nn.Linear(width, 20)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        weights = self.router(x).softmax(-1)
        hidden = torch.einsum("efd,btd->btef", self.up, x).relu()
        return self.out(torch.einsum("edf,btef,bte->btd", self.down, hidden, weights))


IDS = torch.arange(12).reshape(2, 6)
MODELS = {
    "gpt": (GPT, IDS),
    "tied": (lambda: GPT(tied=True), IDS),
    "vit": (ViT, torch.ones(2, 3, 8, 8)),
    "resnet": (ResNet, torch.ones(2, 3, 8, 8)),
    "moe": (MoE, IDS),
}
"""Name -> (constructor, an input)."""
