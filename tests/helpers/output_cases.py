"""Models as people write them, as wide as their vocabulary: only the forward pass tells which layer is the output.

`CASES`: name -> constructor and the weights that are output layers, where every other matrix is hidden.
"""

from __future__ import annotations

import math
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

W = 16
CASES: dict[str, tuple[Callable[[], nn.Module], tuple[str, ...]]] = {}


def case(*outputs: str) -> Callable[[type[nn.Module]], type[nn.Module]]:
    """Register a model with its output weights."""

    def register(kind: type[nn.Module]) -> type[nn.Module]:
        CASES[kind.__name__] = kind, outputs
        return kind

    return register


def square() -> nn.Linear:
    return nn.Linear(W, W)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(W), nn.Linear(W, 64), nn.Linear(64, W)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Body(nn.Module):
    """Words and two blocks; subclasses add the end."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(W, W)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.ends()

    def ends(self) -> None:
        self.proj = square()

    def features(self, x: Tensor) -> Tensor:
        h = self.words(x)
        for block in self.blocks:
            h = block(h)
        return h


@case("end.1.weight")
class InSequential(Body):
    def ends(self) -> None:
        self.end = nn.Sequential(nn.LayerNorm(W), square())

    def forward(self, x: Tensor) -> Tensor:
        return self.end(self.features(x))


@case("end.2.weight")
class TwoLayersInSequential(Body):
    def ends(self) -> None:
        self.end = nn.Sequential(square(), nn.Tanh(), square())

    def forward(self, x: Tensor) -> Tensor:
        return self.end(self.features(x))


@case("ends_.a.weight", "ends_.b.weight")
class InModuleDict(Body):
    def ends(self) -> None:
        self.ends_ = nn.ModuleDict({"a": square(), "b": square()})

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        h = self.features(x)
        return {key: layer(h) for key, layer in self.ends_.items()}


@case("ends_.a.weight", "ends_.b.weight")
class ChosenByAnArgument(Body):
    def ends(self) -> None:
        self.ends_ = nn.ModuleDict({"a": square(), "b": square()})

    def forward(self, x: Tensor, task: str) -> Tensor:
        return self.ends_[task](self.features(x))


@case("projs.0.weight", "projs.1.weight", "projs.2.weight")
class InModuleList(Body):
    def ends(self) -> None:
        self.projs = nn.ModuleList(square() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        h = self.features(x)
        return torch.stack([proj(h) for proj in self.projs], dim=1)


@case("projs.0.weight", "projs.1.weight")
class AppendedToAList(Body):
    def ends(self) -> None:
        self.projs = nn.ModuleList(square() for _ in range(2))

    def forward(self, x: Tensor) -> list[Tensor]:
        h, results = self.features(x), []
        for i, proj in enumerate(self.projs):
            results.append(proj(h[:, i]))
        return results


@case("proj.weight")
class ByFunctional(Body):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.features(x), self.proj.weight, self.proj.bias)


@case("proj.weight")
class ByProduct(Body):
    def forward(self, x: Tensor) -> Tensor:
        return self.features(x) @ self.proj.weight.t() / math.sqrt(W)


@case("proj.weight")
class ByEinsum(Body):
    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("btd,vd->btv", self.features(x), self.proj.weight)


@case("weight")
class PlainParameter(Body):
    def ends(self) -> None:
        self.weight = nn.Parameter(torch.randn(W, W))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.features(x), self.weight)


@case()
class TiedWeight(Body):
    def ends(self) -> None:
        self.proj = nn.Linear(W, W, bias=False)
        self.proj.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(self.features(x))


@case()
class TiedByFunction(Body):
    def ends(self) -> None:
        pass

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.features(x), self.words.weight)


@case()
class TiedAfterALayer(Body):
    """The layer before the tied output is hidden."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.proj(self.features(x)), self.words.weight)


@case("proj.weight")
class Tuple(Body):
    def forward(self, x: Tensor, y: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        logits = self.proj(self.features(x))
        loss = None if y is None else F.cross_entropy(logits.view(-1, logits.size(-1)), y.view(-1))
        return logits, loss


@case("proj.weight")
class LossOnly(Body):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        logits = self.proj(self.features(x))
        return F.cross_entropy(logits.view(-1, W), y.view(-1), ignore_index=-1)


@case("proj.weight")
class LossModule(Body):
    def ends(self) -> None:
        self.proj, self.criterion = square(), nn.CrossEntropyLoss()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.criterion(self.proj(self.features(x)).transpose(1, 2), y)


@dataclass
class Result:
    logits: Tensor
    hidden: Tensor | None = None


class Named(NamedTuple):
    logits: Tensor
    hidden: Tensor


Pair = namedtuple("Pair", "logits hidden")


@case("proj.weight")
class Dataclass(Body):
    def forward(self, x: Tensor) -> Result:
        h = self.features(x)
        result = Result(self.proj(h))
        result.hidden = h
        return result


@case("proj.weight")
class NamedRecord(Body):
    def forward(self, x: Tensor) -> Named:
        h = self.features(x)
        return Named(hidden=h, logits=self.proj(h))


@case("proj.weight")
class NamedTupleRecord(Body):
    def forward(self, x: Tensor) -> Any:
        h = self.features(x)
        return Pair(self.proj(h), h)._replace(hidden=h.detach())


@case("proj.weight")
class DictFilled(Body):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        out: dict[str, Tensor] = OrderedDict()
        out["hidden"] = self.features(x)
        out["logits"] = self.proj(out["hidden"])
        return out


@case("proj.weight")
class DictUpdated(Body):
    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        batch.update(logits=self.proj(self.features(batch["x"])))
        return dict(**batch)


@case("proj.weight")
class Softmaxed(Body):
    def forward(self, x: Tensor) -> Tensor:
        return F.log_softmax(self.proj(self.features(x)).float(), dim=-1)


@case("conv.weight")
class Unpatchified(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch, self.blocks = nn.Conv2d(4, W, 2, 2), nn.ModuleList(Block() for _ in range(2))
        self.final = nn.LayerNorm(W)
        self.conv = nn.Linear(W, W)

    def unpatchify(self, x: Tensor, h: int, w: int) -> Tensor:
        x = x.reshape(x.shape[0], h, w, 2, 2, 4)
        x = torch.einsum("nhwpqc->nchpwq", x)
        return x.reshape(x.shape[0], 4, h * 2, w * 2)

    def forward(self, x: Tensor, t: Tensor) -> tuple[Tensor]:
        x = self.patch(x)
        height, width = x.shape[-2:]
        x = x.flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        x = self.conv(self.final(x) * (1 + t[:, None]))
        return (self.unpatchify(x, height, width),)


@case("policy.weight", "val.weight")
class ActorCritic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.policy, self.val = square(), square(), square(), square()

    def forward(self, x: Tensor) -> tuple[Any, Tensor]:
        h = torch.tanh(self.second(torch.tanh(self.first(x))))
        return torch.distributions.Categorical(logits=self.policy(h)), self.val(h).mean(-1)


@case("mu.weight", "log_var.weight")
class Gaussian(nn.Module):
    """An encoder: both layers are outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.mu, self.log_var = square(), square(), square()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = F.silu(self.body(x))
        return self.mu(h), self.log_var(h).clamp(-10, 10)


@case("last.weight")
class Autoencoder(nn.Module):
    """mu and log_var are returned too, but a later layer takes them: hidden."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.mu, self.log_var, self.b, self.last = (square() for _ in range(5))

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = F.relu(self.a(x))
        return self.mu(h), self.log_var(h)

    def reparameterise(self, mu: Tensor, log_var: Tensor) -> Tensor:
        return mu + torch.randn_like(mu) * torch.exp(0.5 * log_var)

    def decode(self, z: Tensor) -> Tensor:
        return torch.sigmoid(self.last(F.relu(self.b(z))))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mu, log_var = self.encode(x)
        return self.decode(self.reparameterise(mu, log_var)), mu, log_var


class Quantiser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.codes = nn.Embedding(W, W)

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        indices = torch.cdist(z, self.codes.weight).argmin(-1)
        q = self.codes(indices)
        return z + (q - z).detach(), F.mse_loss(q, z.detach())


@case("decoder.2.weight")
class VQ(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(square(), nn.ReLU(), square())
        self.quantise = Quantiser()
        self.decoder = nn.Sequential(square(), nn.ReLU(), square())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        q, loss = self.quantise(self.encoder(x))
        return self.decoder(q), loss


class Backbone(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.blocks = nn.Embedding(W, W), nn.ModuleList(Block() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        h = self.words(x)
        for block in self.blocks:
            h = block(h)
        return h


@case("linear.weight")
class AroundABackbone(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.linear = Backbone(), square()

    def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        return self.linear(self.backbone(x, **kwargs))


@case("net.linear.weight")
class Wrapper(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = AroundABackbone()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.net(*args, **kwargs)


class Readout(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(W), square()

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.norm(x))


@case("readout.linear.weight")
class OwnEnd(Body):
    def ends(self) -> None:
        self.readout = Readout()

    def forward(self, x: Tensor) -> Tensor:
        return self.readout(self.features(x))


@case("o.weight")
class Checkpointed(Body):
    def ends(self) -> None:
        self.o = square()

    def forward(self, x: Tensor) -> Tensor:
        h = self.words(x)
        for block in self.blocks:
            h = checkpoint(block, h, use_reentrant=False) if self.training else block(h)
        return self.o(h)


@case("to_logits.weight")
class Looped(Body):
    def ends(self) -> None:
        self.to_logits, self.again = square(), square()

    def forward(self, x: Tensor) -> Tensor:
        h = self.features(x)
        while h.norm() < 3:
            h = self.again(h).relu()
        return self.to_logits(h)


@case("to_logits.weight")
class OfTheLastToken(Body):
    def ends(self) -> None:
        self.to_logits = square()

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        h = self.features(x)
        h = h[:, [-1], :] if lengths is None else h[torch.arange(len(h)), lengths - 1]
        return self.to_logits(h).squeeze(1)


@case("fc.weight")
class Residual(nn.Module):
    """The input is added to the output."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.fc = square(), square()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.fc(F.silu(self.first(x)))


@case("lstm_out.weight")
class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.lstm, self.lstm_out = nn.Embedding(W, W), nn.LSTM(W, W, batch_first=True), square()

    def forward(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        h, state = self.lstm(self.words(x), state)
        return self.lstm_out(h), state


@case("readout.weight")
class Cells(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.readout = nn.GRUCell(W, W), square()

    def forward(self, x: Tensor) -> Tensor:
        h, outputs = x.new_zeros(x.shape[0], W), []
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
            outputs += [self.readout(h)]
        return torch.stack(outputs, 1)


@case("trunk.3.weight")
class Slices(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.ModuleList(square() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.trunk[:-1]:
            x = F.relu(layer(x))
        return self.trunk[-1](x)


@case("fc3.weight")
class Numbered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.depth = 3
        for i in range(1, 4):
            setattr(self, f"fc{i}", square())

    def forward(self, x: Tensor) -> Tensor:
        for i in range(1, self.depth):
            x = getattr(self, f"fc{i}")(x).relu()
        return getattr(self, f"fc{self.depth}")(x)


@case("out.weight")
class Gathered(nn.Module):
    """Results of all layers are concatenated before the output."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(square() for _ in range(3))
        self.out = nn.Linear(3 * W, W)

    def forward(self, x: Tensor) -> Tensor:
        states = []
        for layer in self.layers:
            x = layer(x).relu()
            states.append(x)
        return self.out(torch.cat(states, -1))


@case("tower_a.weight", "tower_b.weight")
class Towers(nn.Module):
    """Two embeddings that are compared: both projections are outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.body_a, self.body_b, self.tower_a, self.tower_b = square(), square(), square(), square()
        self.scale = nn.Parameter(torch.zeros(()))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        a = F.normalize(self.tower_a(self.body_a(a).relu()), dim=-1)
        b = F.normalize(self.tower_b(self.body_b(b).relu()), dim=-1)
        return self.scale.exp() * a @ b.T


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = square(), square(), square(), square()

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).unflatten(-1, (4, 4)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        return self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


@case("attention.o.weight")
class AttentionIsLast(nn.Module):
    """No layer follows the attention: its last product is what the model returns."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.attention = square(), Attention()

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(self.body(x).relu())


@case("linear.weight")
class Inherited(Body):
    """The forward pass calls that of the base class."""

    class Base(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x

    def ends(self) -> None:
        self.linear, self.mid = square(), square()

    def features(self, x: Tensor) -> Tensor:
        return F.relu(self.mid(super().features(x)))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.features(x))


@case("final.weight")
class ByLambda(Body):
    def ends(self) -> None:
        self.final = square()
        self.run = lambda h: self.final(h)

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self.features(x))


@case("final.weight")
class Comprehended(Body):
    def ends(self) -> None:
        self.final = square()

    def forward(self, images: list[Tensor]) -> list[Tensor]:
        return [self.final(h) for h in map(self.features, images)]


@case("final.weight")
class Autocast(Body):
    def ends(self) -> None:
        self.final = square()

    @torch.no_grad()
    def sample(self, x: Tensor) -> Tensor:
        return self(x)[:, -1].softmax(-1)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            h = self.features(x)
        logits: Tensor
        if (logits := self.final(h)).ndim == 3:
            return logits
        return logits.unsqueeze(0)


@case("final.weight")
class Capped(Body):
    def ends(self) -> None:
        self.final = square()

    def forward(self, x: Tensor) -> Tensor:
        logits = self.final(self.features(x))
        return 30.0 * torch.tanh(logits / 30.0)


@case("final.weight", "aux.weight")
class Auxiliary(Body):
    """A second output while training, from a state in the middle."""

    def ends(self) -> None:
        self.final, self.aux = square(), square()

    def forward(self, x: Tensor) -> Any:
        h = self.words(x)
        extra = None
        for i, block in enumerate(self.blocks):
            h = block(h)
            if self.training and i == 0:
                extra = self.aux(h)
        return (self.final(h), extra) if extra is not None else self.final(h)


@case("final.weight")
class Conditional(Body):
    """A layer that modulates is hidden although its result only multiplies."""

    def ends(self) -> None:
        self.time, self.modulation, self.final = square(), nn.Linear(W, 2 * W), square()

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        scale, shift = self.modulation(F.silu(self.time(t))).chunk(2, dim=-1)
        return self.final(self.features(x) * (1 + scale[:, None]) + shift[:, None])


@case("final.weight")
class GatedEnd(nn.Module):
    """One of several layers that lead to the output."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_in, self.up_in, self.final = square(), square(), square()

    def forward(self, x: Tensor) -> Tensor:
        return self.final(F.silu(self.gate_in(x)) * self.up_in(x))


@case("fn.fc.weight")
class Mixture(nn.Module):
    """A mixture of experts in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(W, 2)
        self.experts = nn.ModuleList(square() for _ in range(2))
        self.fn = nn.ModuleDict({"fc": square()})

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.router(x).softmax(-1).topk(1, dim=-1)
        mixed = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            where = (chosen == i).any(-1)
            mixed[where] += weights[where] * expert(x[where])
        return self.fn.fc(mixed)


@case("up.weight")
class Upsampler(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.up = (nn.Conv2d(W, W, 3, padding=1) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        y = self.middle(F.relu(self.first(x)))
        return F.pixel_shuffle(self.up(y + F.interpolate(x, y.shape[-2:])), 2)


@case("up.weight")
class Transposed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv1d(W, W, 4, 2), nn.ConvTranspose1d(W, W, 4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.up(torch.relu(self.down(x)))


@case("segment.weight", "depth.weight")
class DenseTasks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tasks = ["segment", "depth"]
        self.body, self.segment, self.depth = (nn.Conv2d(W, W, 1) for _ in range(3))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        h = self.body(x).relu()
        return {task: getattr(self, task)(h) for task in self.tasks}
