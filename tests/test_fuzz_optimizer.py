"""Programs of an optimizer's life in any order, each step against the slow twin, equation by equation.

Steps with every option, view and kind of gradient; saving, loading, copying, pickling, groups that come later and
schedulers in between. A step is whole or raises and changes nothing.
"""

import copy
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from torch import Tensor, nn

from fuzzing import TALLY, fuzz
from inexact_muon.lmo import parse as parse_ball
from inexact_muon.optim import SCALES, LMOOptimizer, reference_step
from inexact_muon.optim.lengths import parse as parse_length
from test_optim_promises import through_disk

BALLS = ("spectral(polar=jordan(steps=3))", "spectral(polar=polar-express(steps=4))", "sign", "euclidean", "row-norm")
LENGTHS = ("fixed", "steepest", "clipped", "smooth(l0=0.5, l1=2.0)")
VIEWS = {"whole": (6, 4), "flatten": (4, 2, 3), "split(rows=2)": (6, 4), "split(rows=(1, 5))": (6, 3)}
TOLERANCE = 1e-9


@dataclass
class Twin:
    """A parameter as the equations have it: float64, one matrix after the other."""

    w: Tensor
    options: dict[str, Any]
    buffers: dict[str, Tensor | None]
    step: int = 0
    skipped: int = 0


@st.composite
def groups(draw: st.DrawFn) -> dict[str, Any]:
    """The options of a group and the shape of its one parameter."""
    if draw(st.integers(0, 3)) == 0:
        found = {"algorithm": "adamw", "betas": (draw(st.sampled_from((0.0, 0.9))), 0.95), "shape": (5,)}
        return {**found, "lr": draw(st.sampled_from((0.0, 0.01))), "weight_decay": draw(st.sampled_from((0.0, 0.3)))}
    view = draw(st.sampled_from(sorted(VIEWS)))
    found = {
        "view": view,
        "shape": VIEWS[view],
        "ball": draw(st.sampled_from(BALLS)),
        "lr": draw(st.sampled_from((0.0, 0.02, 0.7))),
        "momentum": draw(st.sampled_from((0.0, 0.5, 0.95))),
        "nesterov": draw(st.booleans()),
        "momentum_init": draw(st.sampled_from(("zero", "first-gradient"))),
        "maximize": draw(st.booleans()),
        "radius": draw(st.sampled_from((1.0, 2.5))),
    }
    if draw(st.integers(0, 3)) == 0:
        return {**found, "constrained": True, "weight_decay": 0.0, "scale": "none", "length": "fixed"}
    return {
        **found,
        "length": draw(st.sampled_from(LENGTHS)),
        "scale": draw(st.sampled_from(sorted(SCALES))),
        "weight_decay": draw(st.sampled_from((0.0, 0.3))),
    }


def cut(x: Tensor, view: str) -> list[Tensor]:
    """The matrices of a view, by hand."""
    rows = {"split(rows=2)": [3, 3], "split(rows=(1, 5))": [1, 5]}.get(view, [x.shape[0]])
    return [part.reshape(part.shape[0], -1) for part in torch.split(x, rows)]


def advance(twin: Twin, g: Tensor, group: dict[str, Any]) -> None:
    """One step of the twin; lr, momentum and decay are those of the group now, since schedulers change them."""
    now = {key: float(group[key]) for key in ("lr", "momentum", "weight_decay")}
    if not bool(g.isfinite().all()):
        twin.skipped += 1
        return
    twin.step += 1
    if twin.options.get("algorithm") == "adamw":
        adamw(twin, g, now, float(group["beta2"]), float(group["eps"]))
        return
    g = -g if twin.options["maximize"] else g
    view, first = twin.options["view"], twin.step == 1 and twin.options["momentum_init"] == "first-gradient"
    buffer = twin.buffers["m"]
    olds = [None] * len(cut(g, view)) if first or buffer is None else cut(buffer, view)
    done = [
        reference_step(
            *(w, None if first else torch.zeros_like(w) if m is None else m, part),
            ball=parse_ball(twin.options["ball"]),
            length=parse_length(twin.options["length"]),
            **{key: twin.options[key] for key in ("radius", "nesterov", "scale")},
            constrained=twin.options.get("constrained", False),
            **now,
        )
        for w, m, part in zip(cut(twin.w, view), olds, cut(g, view), strict=True)
    ]
    twin.w, twin.buffers["m"] = (torch.cat([pair[i] for pair in done]).reshape(g.shape) for i in range(2))


def adamw(twin: Twin, g: Tensor, now: dict[str, float], beta2: float, eps: float) -> None:
    """Algorithm 2 of arXiv 1711.05101."""
    one, k = now["momentum"], twin.step
    first, second = (torch.zeros_like(g) if twin.buffers.get(n) is None else twin.buffers[n] for n in ("m", "v"))
    assert first is not None
    assert second is not None
    twin.buffers["m"], twin.buffers["v"] = one * first + (1 - one) * g, beta2 * second + (1 - beta2) * g * g
    m, v = twin.buffers["m"] / (1 - one**k), twin.buffers["v"] / (1 - beta2**k)
    twin.w = (1 - now["lr"] * now["weight_decay"]) * twin.w - now["lr"] * m / (v.sqrt() + eps)


class Programs(RuleBasedStateMachine):
    """An optimizer and the twins of its parameters."""

    @initialize(first=groups(), count=st.integers(0, 2), seed=st.integers(0, 10**6), data=st.data())
    def make(self, first: dict[str, Any], count: int, seed: int, data: st.DataObject) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.twins: list[Twin] = []
        TALLY["programs"] += 1
        self.scheduler: Any = None
        self.saved: tuple[Any, Any, Any] | None = None
        self.nonfinite = data.draw(st.sampled_from(("skip", "raise")))
        made = [self.group(first), *(self.group(data.draw(groups())) for _ in range(count))]
        self.optimizer = LMOOptimizer(made, 0.1, 0.9, ball="sign", on_nonfinite=self.nonfinite)

    def group(self, options: dict[str, Any]) -> dict[str, Any]:
        """A group with a new parameter, whose twin is remembered."""
        options = dict(options)
        p = nn.Parameter(self.draw(options.pop("shape")))
        self.twins.append(Twin(p.detach().clone(), options, {"m": None}))
        return {"params": [p], **options}

    def draw(self, shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def params(self) -> list[Tensor]:
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    @rule(data=st.data(), size=st.sampled_from((1.0, 1e-30, 1e20)))
    def step(self, data: st.DataObject, size: float) -> None:
        kinds = ["plain", "plain", "plain", "none", "zero", "nan", "inf"]
        gradients: list[Tensor | None] = []
        for p in self.params():
            kind = data.draw(st.sampled_from(kinds))
            g = self.draw(tuple(p.shape)) * size
            if kind in ("nan", "inf"):
                g.view(-1)[data.draw(st.integers(0, g.numel() - 1))] = float(kind)
            gradients.append(None if kind == "none" else torch.zeros_like(g) if kind == "zero" else g)
        for p, g in zip(self.params(), gradients, strict=True):
            p.grad = None if g is None else g.clone()
        bad = any(g is not None and not bool(g.isfinite().all()) for g in gradients)
        if bad and self.nonfinite == "raise":
            before = copy.deepcopy(self.optimizer.state_dict())
            try:
                self.optimizer.step()
            except ValueError:
                assert str(before) == str(self.optimizer.state_dict())
                return
            raise AssertionError("a gradient that is not finite was accepted")
        self.optimizer.step()
        for p, g, group, twin in zip(self.params(), gradients, self.optimizer.param_groups, self.twins, strict=True):
            if g is not None:
                advance(twin, g, group)
                assert p.grad is not None
                assert torch.equal(p.grad.nan_to_num(7.0), g.nan_to_num(7.0)), "the gradient was changed"
        if self.scheduler is not None:
            self.scheduler.step()

    @rule(options=groups())
    @precondition(lambda self: len(self.twins) < 4 and self.scheduler is None)
    def add_group(self, options: dict[str, Any]) -> None:
        self.saved = None
        self.optimizer.add_param_group(self.group(options))

    @rule(clone=st.sampled_from((copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o)))))
    def copied(self, clone: Callable[[Any], Any]) -> None:
        """The copy goes on; a scheduler belongs to the optimizer that it was made for."""
        self.scheduler = None
        self.optimizer = clone(self.optimizer)

    @rule(kind=st.sampled_from(("cosine", "one-cycle", "cyclic")))
    @precondition(lambda self: self.scheduler is None)
    def schedule(self, kind: str) -> None:
        lrs = torch.optim.lr_scheduler
        for group in self.optimizer.param_groups:
            group.pop("initial_lr", None)
        if kind == "cosine":
            self.scheduler = lrs.CosineAnnealingLR(self.optimizer, 7)
        elif kind == "one-cycle":
            self.scheduler = lrs.OneCycleLR(self.optimizer, 0.3, total_steps=1000)
        else:
            self.scheduler = lrs.CyclicLR(self.optimizer, 0.001, 0.2, step_size_up=3)

    @rule()
    def save(self) -> None:
        weights = [p.detach().clone() for p in self.params()]
        self.saved = (through_disk(self.optimizer.state_dict()), weights, copy.deepcopy(self.twins))

    @rule()
    @precondition(lambda self: self.saved is not None)
    def load(self) -> None:
        """Into an optimizer made anew, as after a restart."""
        self.scheduler = None
        assert self.saved is not None
        file, weights, twins = self.saved
        self.twins = copy.deepcopy(twins)
        made = [
            {"params": [nn.Parameter(w.clone())], **twin.options, "lr": 0.123}
            for w, twin in zip(weights, self.twins, strict=True)
        ]
        self.optimizer = LMOOptimizer(made, 0.1, 0.9, ball="sign", on_nonfinite=self.nonfinite)
        self.optimizer.load_state_dict(copy.deepcopy(file))
        for group, old in zip(self.optimizer.param_groups, file["param_groups"], strict=True):
            assert {**group, "params": []} == {**old, "params": []}

    @invariant()
    def equals_the_twin(self) -> None:
        if not hasattr(self, "optimizer"):
            return
        for p, twin in zip(self.params(), self.twins, strict=True):
            size = 1.0 + float(twin.w.abs().max())
            assert float((p.detach() - twin.w).abs().max()) <= TOLERANCE * size
            state = self.optimizer.state.get(p, {})
            assert int(state.get("step", 0)) == twin.step
            assert int(state.get("skipped", 0)) == twin.skipped


TestPrograms = Programs.TestCase
TestPrograms.settings = fuzz(30, stateful_step_count=15)
