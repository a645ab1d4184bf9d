"""A small modern GPT: RMSNorm without weights, QK-norm, squared ReLU, untied head, no biases."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from inexact_muon_lab import data
from inexact_muon_lab.data.text import Windows
from inexact_muon_lab.problems.task import Batch, Task, tensors
from inexact_muon_lab.spec.spec import NanoGPT, RunSpec


class TransformerBlock(nn.Module):
    """x <- x + attention(norm(x)); x <- x + mlp(norm(x))."""

    def __init__(self, options: NanoGPT) -> None:
        super().__init__()
        width = options.width
        self.heads = options.heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor] | None) -> Tensor:
        x = x + self.out(self.attend(norm(x), rotation))
        return x + self.down(F.relu(self.up(norm(x))).square())

    def attend(self, x: Tensor, rotation: tuple[Tensor, Tensor] | None) -> Tensor:
        """Causal attention with normalised queries and keys."""
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = norm(q), norm(k)
        if rotation is not None:
            q, k = rotate(q, *rotation), rotate(k, *rotation)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return mixed.transpose(1, 2).reshape(batch, length, width)


class GPT(nn.Module):
    """Logits of the next token."""

    def __init__(self, options: NanoGPT, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, options.width)
        self.positions = nn.Embedding(options.context, options.width) if options.positions == "learned" else None
        blocks = [TransformerBlock(options) for _ in range(options.layers)]
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(options.width, vocabulary, bias=False)
        cos, sin = rotary(options.context, options.width // options.heads)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        # Scale down the layers that write to the residual stream, so that its size does not depend on depth.
        residual = {layer.weight for block in blocks for layer in (block.out, block.down)}
        for parameter in self.parameters():
            small = (2 * options.layers) ** -0.5 if parameter in residual else 1.0
            nn.init.normal_(parameter, std=small * parameter.shape[-1] ** -0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        rotation: tuple[Tensor, Tensor] | None = None
        if self.positions is not None:
            x = x + self.positions.weight[: tokens.shape[1]]
        else:
            assert isinstance(self.cos, Tensor)
            assert isinstance(self.sin, Tensor)
            rotation = self.cos[: tokens.shape[1]].to(x.dtype), self.sin[: tokens.shape[1]].to(x.dtype)
        x = norm(x)
        for block in self.blocks:
            x = block(x, rotation)
        logits: Tensor = self.head(norm(x))
        return logits


def norm(x: Tensor) -> Tensor:
    """x / rms(x)."""
    return F.rms_norm(x, (x.shape[-1],))


def rotary(length: int, width: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of position * 10000^(-2i/width)."""
    frequencies = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.outer(torch.arange(length, dtype=torch.float64), frequencies)
    return angles.cos().float(), angles.sin().float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs (x_i, x_{i + width/2}) by their angles."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)


def build(spec: RunSpec) -> Task:
    """Next-token prediction on windows of a text."""
    assert isinstance(spec.problem, NanoGPT)
    tokens, context = data.load(spec.data), spec.problem.context
    assert isinstance(tokens, data.Tokens)
    train = Windows(tokens.train, context, f"{tokens.name}, training part")
    validation = Windows(tokens.validation, context, f"{tokens.name}, validation part")
    spread = np.linspace(0, len(validation) - 1, spec.batch * spec.validation).astype(int).reshape(-1, spec.batch)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        logits = model(batch[0])
        return F.cross_entropy(logits.float().flatten(0, 1), batch[1].flatten())

    return Task(
        model=GPT(spec.problem, tokens.vocabulary),
        batch=lambda step: tensors(train.batch(spec.seed, step, spec.batch)),
        loss=loss,
        validation=lambda index: tensors(validation.gather(spread[index])),
    )
