"""Records the spectra of momentum that the package ships: `python studies/record_spectra.py [--out FILE]`.

Two small trainings with Muon (`PolarExpress(5)`, momentum 0.95, Nesterov, no weight decay), one thread, seed 0:

- gpt: bytes of the Python standard library's source, 2 blocks, width 128, 4 heads, context 96, batch 16, 250 steps,
  lr 0.04; separate query, key, value and projection (128 x 128) and an MLP (512 x 128, 128 x 512).
- cnn: scikit-learn's digits with random shifts, three convolutions (32, 64, 64 channels, 3 x 3), batch 64, 250 steps,
  lr 0.02; the kernels as out x (in * 9).

early, mid and late are after 10, 100 and 250 steps. The learning rate falls linearly to zero in the last half.
"""

from __future__ import annotations

import sysconfig
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path

import torch
from rich.progress import track
from torch import Tensor, nn
from torch.nn import functional as F

from inexact_muon import Muon
from inexact_muon_lab.tune.spectra import SHIPPED, record

STAGES = {10: "early", 100: "mid", 250: "late"}
WIDTH, HEADS, CONTEXT = 128, 4, 96


class Attention(nn.Module):
    """Causal self-attention with four separate matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.proj = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Pre-norm attention and MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """Two blocks on bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(Block(), Block())
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        return self.head(self.norm(self.blocks(x)))


def standard_library() -> Tensor:
    """The first 4 MB of its source, by file name."""
    folder, text = Path(sysconfig.get_paths()["stdlib"]), bytearray()
    for path in sorted(folder.glob("*.py")):
        text += path.read_bytes()
    return torch.frombuffer(bytearray(text[: 4 << 20]), dtype=torch.uint8).long()


def gpt() -> tuple[nn.Module, Callable[[], Tensor], float]:
    """Model, loss of a fresh batch, learning rate."""
    data, model = standard_library(), GPT()

    def loss() -> Tensor:
        starts = torch.randint(len(data) - CONTEXT - 1, (16, 1))
        batch = data[starts + torch.arange(CONTEXT + 1)]
        return F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())

    return model, loss, 0.04


def cnn() -> tuple[nn.Module, Callable[[], Tensor], float]:
    """Model, loss of a fresh batch, learning rate."""
    from sklearn.datasets import load_digits

    images, classes = load_digits(return_X_y=True)
    x, y = torch.tensor(images).float().reshape(-1, 1, 8, 8) / 16.0, torch.tensor(classes)
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.GELU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.GELU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3, padding=1),
        nn.GELU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    )

    def loss() -> Tensor:
        taken = torch.randint(len(x), (64,))
        right, down = (int(i) for i in torch.randint(-1, 2, (2,)))
        return F.cross_entropy(model(x[taken].roll((right, down), (2, 3))), y[taken])

    return model, loss, 0.02


RUNS = {"gpt": gpt, "cnn": cnn}


def train(name: str, out: Path) -> float:
    """One run; its spectra go to `out` under name-stage/kind/parameter. Returns the last loss."""
    torch.manual_seed(0)
    model, loss, lr = RUNS[name]()
    optimizer = Muon.for_model(model, lr, polar="polar-express:5", adamw={"lr": 3e-3}, weight_decay=0.0)
    peaks, steps = [group["lr"] for group in optimizer.param_groups], max(STAGES)
    for step in track(range(1, steps + 1), description=name):
        for group, peak in zip(optimizer.param_groups, peaks, strict=True):
            group["lr"] = peak * min(1.0, 2.0 * (1.0 - (step - 1) / steps))
        optimizer.zero_grad()
        value = loss()
        value.backward()
        optimizer.step()
        if step in STAGES:
            record({_kind(n) + n: b for n, b in _buffers(optimizer)}, out, label=f"{name}-{STAGES[step]}")
    return float(value.detach())


def _buffers(optimizer: Muon) -> list[tuple[str, Tensor]]:
    named = [(name, optimizer.state[p]) for name, p, group in optimizer.named() if group["algorithm"] == "lmo"]
    return [(name, state["momentum_buffer"]) for name, state in named]


def _kind(name: str) -> str:
    return next((f"{kind}/" for kind in ("attention", "mlp") if kind in name), "conv/")


def main() -> None:
    """Writes the file that the package ships."""
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=SHIPPED)
    out = parser.parse_args().out
    torch.set_num_threads(1)
    out.unlink(missing_ok=True)
    for name in RUNS:
        print(f"{name}: last loss {train(name, out):.3f}")


if __name__ == "__main__":
    main()
