"""Models by the shapes of their weights alone: repeated blocks, for fake devices."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn


class Stacks(nn.Module):
    """Repeated blocks of matrices, each with a norm, between an embedding and an output layer."""

    def __init__(
        self, layers: int, matrices: dict[str, tuple[int, int]], vocabulary: int, tied: bool, bias: bool
    ) -> None:
        super().__init__()
        width = next(iter(matrices.values()))[1]
        self.tokens, self.head = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary, bias=bias)
        if tied:
            self.head.weight = self.tokens.weight
        self.norm = nn.LayerNorm(width, bias=bias)
        self.blocks = nn.ModuleList()
        for _ in range(layers):
            block = {name: nn.Linear(into, out, bias=bias) for name, (out, into) in matrices.items()}
            norms = {name: nn.LayerNorm(width, bias=bias) for name in ("first", "second")}
            self.blocks.append(nn.ModuleDict({**block, **norms}))


class Experts(nn.Module):
    """Layers of 3-D weights, up and down, of 64 experts."""

    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        self.up = nn.ParameterList([nn.Parameter(torch.empty(64, 1408, 2048)) for _ in range(layers)])
        self.down = nn.ParameterList([nn.Parameter(torch.empty(64, 2048, 1408)) for _ in range(layers)])


GPT2 = {"c_attn": (2304, 768), "attn_proj": (768, 768), "fc": (3072, 768), "mlp_proj": (768, 3072)}
LLAMA = {
    "q_proj": (4096, 4096),
    "k_proj": (1024, 4096),
    "v_proj": (1024, 4096),
    "o_proj": (4096, 4096),
    "gate_proj": (14336, 4096),
    "up_proj": (14336, 4096),
    "down_proj": (4096, 14336),
}


def gpt2(layers: int = 12, bias: bool = False) -> nn.Module:
    return Stacks(layers, GPT2, 50304, tied=True, bias=bias)


def llama(layers: int = 32) -> nn.Module:
    return Stacks(layers, LLAMA, 128256, tied=False, bias=False)


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
