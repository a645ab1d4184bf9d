"""Forward passes in unusual Python: helpers, closures, recursion, generators, weights used outside of their layer.

The cases join `output_cases.CASES`.
"""

from __future__ import annotations

import functools
import math
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from output_cases import CASES as CASES
from output_cases import Block, Body, W, case, square


@case("proj.weight")
class Normalised(Body):
    """Cosine logits: the weight is normalised before the product."""

    def forward(self, x: Tensor) -> Any:
        return 10 * F.linear(F.normalize(self.features(x), dim=-1), F.normalize(self.proj.weight, dim=-1))


@case("proj.weight")
class Addmm(Body):
    def forward(self, x: Tensor) -> Any:
        return torch.addmm(self.proj.bias, self.features(x).flatten(0, 1), self.proj.weight.T)


@case("proj.weight")
class Matmul(Body):
    def forward(self, x: Tensor) -> Any:
        return self.features(x).matmul(self.proj.weight.transpose(0, 1)).add(self.proj.bias)


@case("up_factor", "down_factor")
class LowRankEnd(Body):
    """Two factors whose product is the output."""

    def ends(self) -> None:
        self.up_factor, self.down_factor = nn.Parameter(torch.randn(W, 4)), nn.Parameter(torch.randn(4, W))

    def forward(self, x: Tensor) -> Any:
        return self.features(x) @ (self.up_factor @ self.down_factor)


@case("proj.weight")
class StoredOnSelf(Body):
    def forward(self, x: Tensor) -> Any:
        self.logits = self.proj(self.features(x))
        return self.logits


@case("proj.weight")
class InPlace(Body):
    def forward(self, x: Tensor) -> Any:
        h = self.features(x)
        out = torch.empty_like(h)
        for i in range(h.shape[1]):
            out[:, i] = self.proj(h[:, i])
        return out


@case("proj.weight")
class Copied(Body):
    def forward(self, x: Tensor) -> Any:
        h = self.features(x)
        out = torch.empty_like(h)
        out.copy_(self.proj(h))
        return out


@case("c.weight")
class ListLiteral(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = square(), square(), square()

    def forward(self, x: Tensor) -> Any:
        for f in [self.a, torch.relu, self.b, torch.relu, self.c]:
            x = f(x)
        return x


@case("c.weight")
class Children(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = square(), square(), square()

    def forward(self, x: Tensor) -> Any:
        for name, f in self.named_children():
            x = f(x) if name == "c" else F.relu(f(x))
        return x


@case("c.weight")
class ModulesValues(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = square(), square(), square()

    def forward(self, x: Tensor) -> Any:
        for f in self._modules.values():
            x = F.relu(f(x))
        return x


@case("c.weight")
class PlainList(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = square(), square(), square()
        self.order = [self.a, self.b, self.c]

    def forward(self, x: Tensor) -> Any:
        *body, end = self.order
        for f in body:
            x = F.relu(f(x))
        return end(x)


@case("stop.weight")
class Recursive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.go, self.stop = square(), square()

    def forward(self, x: Any, depth: int = 3) -> Any:
        if depth == 0:
            return self.stop(x)
        return self.forward(F.relu(self.go(x)), depth - 1)


@case("last.weight")
class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.downs = nn.ModuleList(nn.Conv2d(W, W, 3, padding=1) for _ in range(2))
        self.ups = nn.ModuleList(nn.Conv2d(2 * W, W, 3, padding=1) for _ in range(2))
        self.last = nn.Conv2d(W, W, 1)

    def forward(self, x: Tensor) -> Any:
        skips = []
        for d in self.downs:
            x = F.relu(d(x))
            skips.append(x)
        for u in self.ups:
            x = F.relu(u(torch.cat([x, skips.pop()], 1)))
        return self.last(x)


@case("exits.0.weight", "exits.1.weight")
class EarlyExit(Body):
    def ends(self) -> None:
        self.exits = nn.ModuleList(square() for _ in range(2))

    def forward(self, x: Any, level: int = 0) -> Any:
        h = self.words(x)
        for i, (b, e) in enumerate(zip(self.blocks, self.exits, strict=True)):
            h = b(h)
            if i == level:
                return e(h)
        return self.exits[-1](h)


@case("head_a.weight", "head_b.weight")
class ByTask(Body):
    def ends(self) -> None:
        self.head_a, self.head_b = square(), square()

    def forward(self, x: Any, task: Any) -> Any:
        return getattr(self, "head_" + task)(self.features(x))


@case("stats.weight")
class Chunked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.stats = square(), nn.Linear(W, 2 * W)

    def forward(self, x: Tensor) -> Any:
        mean, log_std = self.stats(F.relu(self.body(x))).chunk(2, -1)
        return torch.distributions.Normal(mean, log_std.clamp(-5, 2).exp())


@case("proj.weight")
class Vmapped(Body):
    def forward(self, x: Tensor) -> Any:
        return torch.vmap(self.proj)(self.features(x))


@case("proj.weight")
class Partial(Body):
    def forward(self, x: Tensor) -> Any:
        end = functools.partial(self.finish, scale=2.0)
        return end(self.features(x))

    def finish(self, h: Any, scale: Any) -> Any:
        return self.proj(h) * scale


@case("proj.weight")
class ForwardCalled(Body):
    def forward(self, x: Tensor) -> Any:
        return self.proj.forward(self.features(x))


@case("proj.weight")
class DunderCall(Body):
    def forward(self, x: Tensor) -> Any:
        return self.proj.__call__(self.features(x))


@case("proj.weight")
class Tried(Body):
    def forward(self, x: Tensor) -> Any:
        try:
            h = self.features(x)
        except IndexError as e:
            raise ValueError("bad") from e
        else:
            y = self.proj(h)
        finally:
            pass
        return y


@case("proj.weight")
class Matched(Body):
    mode = "plain"

    def forward(self, x: Tensor) -> Any:
        h = self.features(x)
        match self.mode:
            case "plain":
                y = self.proj(h)
            case _:
                y = self.proj(h).exp()
        return y


@case("proj.weight")
class Compiled(Body):
    @torch.compile(backend="eager")
    def forward(self, x: Tensor) -> Any:
        return self.proj(self.features(x))


@case("proj.weight")
class Decorated(Body):
    @torch.autocast("cpu")
    def forward(self, x: Tensor) -> Any:
        return self.proj(self.features(x))


def logged(f: Any) -> Any:
    def inner(self, *a: Any, **k: Any) -> Any:
        return f(self, *a, **k)

    return inner


@case("proj.weight")
class OwnDecorator(Body):
    @logged
    def forward(self, x: Tensor) -> Any:
        return self.proj(self.features(x))


@case("proj.weight")
class Aliased(Body):
    def _forward_impl(self, x: Any) -> Any:
        return self.proj(self.features(x))

    forward = _forward_impl


@case("proj.weight")
class Generator(Body):
    def parts(self, x: Any) -> Any:
        for h in x.split(2):
            yield self.proj(self.features(h))

    def forward(self, x: Tensor) -> Any:
        return torch.cat(list(self.parts(x)))


@case("proj.weight")
class StaticHelper(Body):
    @staticmethod
    def apply_end(layer: Any, h: Any) -> Any:
        return layer(h)

    def forward(self, x: Tensor) -> Any:
        return self.apply_end(self.proj, self.features(x))


@case("proj.weight")
class ClassHelper(Body):
    @classmethod
    def end(cls, layer: Any, h: Any) -> Any:
        return layer(h)

    def forward(self, x: Tensor) -> Any:
        return self.end(self.proj, self.features(x))


def outside(layer: Any, h: Any) -> Any:
    return layer(h).float()


@case("proj.weight")
class OutsideHelper(Body):
    def forward(self, x: Tensor) -> Any:
        return outside(self.proj, self.features(x))


@case("out_proj.weight")
class MultiheadLast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mid = nn.TransformerEncoder(nn.TransformerEncoderLayer(W, 4, 32, batch_first=True), 2)
        self.out_proj = square()

    def forward(self, x: Tensor) -> Any:
        return self.out_proj(self.mid(x))


@case("decoder.weight")
class Tutorial(nn.Module):
    """The transformer of torch's tutorial."""

    def __init__(self) -> None:
        super().__init__()
        self.model_type = "Transformer"
        self.encoder = nn.Embedding(W, W)
        layer = nn.TransformerEncoderLayer(W, 2, 32, 0.1)
        self.transformer_encoder = nn.TransformerEncoder(layer, 2)
        self.decoder = nn.Linear(W, W)

    def forward(self, src: Any, src_mask: Any = None) -> Any:
        src = self.encoder(src) * math.sqrt(W)
        output = self.transformer_encoder(src, src_mask)
        return self.decoder(output)


@case("net.2.weight")
class Seq(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(square(), nn.ReLU(), square(), nn.Softmax(-1))

    def forward(self, x: Tensor) -> Any:
        return self.net(x)


@case("2.weight")
class SeqSub(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(square(), nn.ReLU(), square())


@case("heads_.0", "heads_.1")
class ParameterHeads(Body):
    def ends(self) -> None:
        self.heads_ = nn.ParameterList(torch.randn(W, W) for _ in range(2))

    def forward(self, x: Tensor) -> Any:
        h = self.features(x)
        return [h @ w for w in self.heads_]


@case("kernel.weight")
class ConvFunction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.kernel = nn.Conv1d(W, W, 3), nn.Conv1d(W, W, 3)

    def forward(self, x: Tensor) -> Any:
        return F.conv1d(F.relu(self.a(x)), self.kernel.weight, self.kernel.bias, padding=1)


@case("proj.weight")
class Method(Body):
    """The output is computed by a method of another name that forward calls in a lambda."""

    def logits(self, h: Any) -> Any:
        return self.proj(h)

    def forward(self, x: Tensor) -> Any:
        f = lambda h: self.logits(h)  # noqa: E731
        return f(self.features(x))


@case("proj.weight")
class Slots(Body):
    def forward(self, x: Tensor) -> Any:
        cache = {"h": self.features(x)}
        cache["h"] = self.proj(cache["h"])
        return cache["h"]


@case("proj.weight")
class NestedFn(Body):
    def forward(self, x: Tensor) -> Any:
        def run(t):
            h = self.features(t)
            return self.proj(h)

        return torch.utils.checkpoint.checkpoint(run, x, use_reentrant=False)


@case("d.weight")
class Dual(nn.Module):
    """A critic takes the generator's output, so that its last layer is hidden."""

    def __init__(self) -> None:
        super().__init__()
        self.g1, self.g2, self.d1, self.d = square(), square(), square(), square()

    def forward(self, z: Any) -> Any:
        return self.d(F.relu(self.d1(torch.tanh(self.g2(F.relu(self.g1(z)))))))


@case("predictor.weight")
class Byol(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.student = nn.Sequential(square(), nn.ReLU(), square())
        self.predictor = square()
        self.teacher = nn.Sequential(square(), nn.ReLU(), square()).requires_grad_(False)

    def forward(self, x: Tensor) -> Any:
        z = self.student(x)
        with torch.no_grad():
            t = self.teacher(x)
        return F.mse_loss(self.predictor(z), t)


@case("fc_out.weight")
class Deep(nn.Module):
    """A function from a table."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.fc_out = square(), square()
        self.act = {"relu": F.relu, "tanh": torch.tanh}["relu"]

    def forward(self, x: Tensor) -> Any:
        return self.fc_out(self.act(self.a(x)))


@case("proj.weight")
class KeywordOnly(Body):
    def forward(self, *, input_ids: Any, labels: Any = None, return_dict: Any = True) -> Any:
        h = self.features(x=input_ids)
        logits = self.proj(input=h)
        if not return_dict:
            return (logits,)
        return dict(logits=logits, loss=None if labels is None else F.cross_entropy(logits, labels))  # noqa: C408


@case("proj.weight", "after.weight")
class AddedEnd(Body):
    """Stable Audio: the last layer adds to the output before it."""

    def ends(self) -> None:
        self.proj, self.after = square(), square()

    def forward(self, x: Tensor) -> Any:
        y = self.proj(self.features(x))
        return self.after(y) + y


@case("proj.weight")
class ReturnedWithFeatures(Body):
    """A hidden state that is returned beside the output."""

    def ends(self) -> None:
        self.hidden, self.proj = square(), square()

    def forward(self, x: Tensor) -> Any:
        h = self.hidden(self.features(x))
        return self.proj(h), h


class SideBlock(Block):
    def __init__(self) -> None:
        super().__init__()
        self.side = square()

    def forward(self, x: Tensor) -> Any:
        x = super().forward(x)
        return x, self.side(x)


@case("blocks.0.side.weight", "blocks.1.side.weight")
class SideOutputs(Body):
    """A control net: each block has an output beside the hidden state."""

    def ends(self) -> None:
        self.blocks = nn.ModuleList(SideBlock() for _ in range(2))

    def forward(self, x: Tensor) -> Any:
        h, outputs = self.words(x), []
        for block in self.blocks:
            h, side = block(h)
            outputs.append(side)
        return outputs


@case("proj.weight")
class StartToken(Body):
    """A plain parameter that is joined to the output makes no product with it."""

    def ends(self) -> None:
        self.proj, self.start_token = square(), nn.Parameter(torch.zeros(1, 1, W))

    def forward(self, x: Tensor) -> Any:
        y = self.proj(self.features(x))
        return torch.cat([self.start_token.expand(y.shape[0], -1, -1), y], dim=1)


@case("proj.weight")
class Filled(Body):
    """A record that is filled after it is made."""

    def forward(self, x: Tensor) -> Any:
        result = SimpleNamespace()
        result.logits = self.proj(self.features(x))
        return result


@case("actor.2.weight", "critic.2.weight")
class Agent(nn.Module):
    """No forward pass: the training loop calls methods, as in single-file reinforcement learning."""

    def __init__(self) -> None:
        super().__init__()
        self.actor = nn.Sequential(square(), nn.Tanh(), square())
        self.critic = nn.Sequential(square(), nn.Tanh(), square())

    def get_value(self, x: Tensor) -> Any:
        return self.critic(x)

    def get_action_and_value(self, x: Tensor, action: Any = None) -> Any:
        spread = torch.distributions.Categorical(logits=self.actor(x))
        if action is None:
            action = spread.sample()
        return action, spread.log_prob(action), spread.entropy(), self.critic(x)


@case("back.weight")
class MethodsAlone(nn.Module):
    """No forward pass; one method uses the other two, so that the code's layer is hidden."""

    def __init__(self) -> None:
        super().__init__()
        self.there, self.code, self.back = square(), square(), square()

    def encode(self, x: Tensor) -> Any:
        return self.code(F.relu(self.there(x)))

    def decode(self, z: Tensor) -> Any:
        return self.back(F.relu(z))

    def loss(self, x: Tensor) -> Any:
        return F.mse_loss(self.decode(self.encode(x)), x)
