"""Programs of an optimizer's life in any order, each step against the slow twin, equation by equation.

Steps with every option, view and kind of gradient, and in between what people do: saving, loading, copying, pickling,
schedulers, hooks; groups that come later, are replaced, reordered or edited; parameters that move to another group or
get other memory; states that are dropped or copied. A step is whole or raises and changes nothing.
"""

import copy
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from torch import Tensor, nn

from fuzzing import TALLY, fuzz
from inexact_muon.lmo import parse as parse_ball
from inexact_muon.optim import SCALES, LMOOptimizer
from inexact_muon.optim.lengths import parse as parse_length
from reference_step import reference_step
from test_optim_promises import through_disk

BALLS = ("spectral(polar=jordan(steps=3))", "spectral(polar=polar-express(steps=4))", "sign", "euclidean", "row-norm")
LENGTHS = ("fixed", "steepest", "clipped", "smooth(l0=0.5, l1=2.0)")
VIEWS = {"whole": (6, 4), "flatten": (4, 2, 3), "split(rows=2)": (6, 4), "split(rows=(1, 5))": (6, 3)}
TOLERANCE = 1e-9
pytestmark = pytest.mark.filterwarnings("ignore:.*groups.* now have lr")  # what OneCycleLR with one rate is told


@dataclass
class Twin:
    """A parameter as the equations have it: float64, one matrix after the other."""

    w: Tensor
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


def advance(twin: Twin, g: Tensor, group: dict[str, Any], options: dict[str, Any]) -> None:
    """One step of the twin; lr, momentum and decay are those of the group now, since schedulers change them."""
    now = {key: float(group[key]) for key in ("lr", "momentum", "weight_decay")}
    if not bool(g.isfinite().all()):
        twin.skipped += 1
        return
    twin.step += 1
    if options.get("algorithm") == "adamw":
        adamw(twin, g, now, float(group["beta2"]), float(group["eps"]))
        return
    g = -g if options["maximize"] else g
    view, first = options["view"], twin.step == 1 and options["momentum_init"] == "first-gradient"
    buffer = twin.buffers["m"]
    olds = [None] * len(cut(g, view)) if first or buffer is None else cut(buffer, view)
    done = [
        reference_step(
            *(w, None if first else torch.zeros_like(w) if m is None else m, part),
            ball=parse_ball(options["ball"]),
            length=parse_length(options["length"]),
            **{key: options[key] for key in ("radius", "nesterov", "scale")},
            constrained=options.get("constrained", False),
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
    """An optimizer, the options of each of its groups, and the twins of its parameters in the order of `params`."""

    @initialize(first=groups(), count=st.integers(0, 2), seed=st.integers(0, 10**6), data=st.data())
    def make(self, first: dict[str, Any], count: int, seed: int, data: st.DataObject) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.twins: list[Twin] = []
        self.options: list[dict[str, Any]] = []
        TALLY["programs"] += 1
        self.scheduler: Any = None
        self.saved: tuple[Any, ...] | None = None
        self.hook = 1.0
        self.nonfinite = data.draw(st.sampled_from(("skip", "raise")))
        made = [self.group(first), *(self.group(data.draw(groups())) for _ in range(count))]
        self.optimizer = LMOOptimizer(made, 0.1, 0.9, ball="sign", on_nonfinite=self.nonfinite)

    def group(self, options: dict[str, Any]) -> dict[str, Any]:
        """A group with a new parameter, whose twin is remembered."""
        options = dict(options)
        p = nn.Parameter(self.draw(options.pop("shape")))
        self.twins.append(Twin(p.detach().clone(), {"m": None}))
        self.options.append(options)
        return {"params": [p], **options}

    def draw(self, shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def params(self) -> list[Tensor]:
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    def rows(self) -> list[tuple[Tensor, Twin, dict[str, Any], dict[str, Any]]]:
        """(parameter, twin, group, options) of each parameter."""
        pairs = zip(self.optimizer.param_groups, self.options, strict=True)
        where = [(p, group, options) for group, options in pairs for p in group["params"]]
        return [(p, twin, group, options) for (p, group, options), twin in zip(where, self.twins, strict=True)]

    def gradient(self, p: Tensor, kind: str, size: float, data: st.DataObject) -> Tensor | None:
        """Of a kind: with values that are not finite, with other strides, with one value for all entries, sparse."""
        g = self.draw(tuple(p.shape)) * size
        if kind in ("nan", "inf"):
            g.view(-1)[data.draw(st.integers(0, g.numel() - 1))] = float(kind)
        strided = g.mT.contiguous().mT if g.ndim > 1 else g.repeat(2)[: len(g)]
        kinds = {"none": None, "zero": torch.zeros_like(g), "strides": strided, "sparse": g.to_sparse()}
        return kinds.get(kind, g[:1].expand(g.shape) if kind == "expanded" else g)

    @rule(data=st.data(), size=st.sampled_from((1.0, 1e-30, 1e20)), closure=st.booleans())
    def step(self, data: st.DataObject, size: float, closure: bool) -> None:
        """What people do in between, and a step."""
        for change in data.draw(st.lists(st.sampled_from(CHANGES), max_size=3)):
            change(self, data)
        kinds = ["plain", "plain", "plain", "none", "zero", "nan", "inf", "strides", "expanded"]
        kinds += ["sparse"] if data.draw(st.integers(0, 9)) == 0 else []
        gradients = [self.gradient(p, data.draw(st.sampled_from(kinds)), size, data) for p in self.params()]

        def backward() -> Tensor:
            for p, g in zip(self.params(), gradients, strict=True):
                p.grad = None if g is None else g.clone() if g.is_contiguous() or g.is_sparse else g
            return torch.tensor(1.0)

        if not closure or self.hook != 1.0:  # a hook runs before the closure
            backward()
            closure = False
        if self.raises(gradients, backward if closure else None):
            return
        assert self.optimizer.step(backward if closure else None) == (1.0 if closure else None)
        for (p, twin, group, options), g in zip(self.rows(), gradients, strict=True):
            if g is not None:
                seen = g * self.hook
                advance(twin, seen, group, options)
                assert p.grad is not None
                assert torch.equal(p.grad.nan_to_num(7.0), seen.nan_to_num(7.0)), "the gradient was changed"
        if self.scheduler is not None:
            self.scheduler.step()

    def raises(self, gradients: list[Tensor | None], closure: Any) -> bool:
        """Whether there is a gradient that cannot be used; then it is said, and nothing has changed."""
        bad = [g for g in gradients if g is not None and (g.is_sparse or not bool(g.isfinite().all()))]
        if not any(g.is_sparse or self.nonfinite == "raise" for g in bad):
            return False
        before, weights = str(self.optimizer.state_dict()), [p.detach().clone() for p in self.params()]
        try:
            self.optimizer.step(closure)
        except (TypeError, ValueError):
            assert before == str(self.optimizer.state_dict())
            assert all(torch.equal(p, w) for p, w in zip(self.params(), weights, strict=True))
            return True
        raise AssertionError("a gradient that cannot be used was accepted")

    @rule(options=groups())
    @precondition(lambda self: len(self.twins) < 4 and self.scheduler is None)
    def add_group(self, options: dict[str, Any]) -> None:
        self.saved = None
        self.optimizer.add_param_group(self.group(options))

    def groups_replaced(self, data: st.DataObject) -> None:
        """As Accelerate's setter and hand-made schedules do, or one of them."""
        new = [{**group, "lr": 0.5 * group["lr"]} for group in self.optimizer.param_groups]
        if data.draw(st.booleans()):
            self.optimizer.param_groups = new
        else:
            at = data.draw(st.integers(0, len(new) - 1))
            self.optimizer.param_groups[at] = new[at]

    def groups_reversed(self, data: st.DataObject) -> None:
        if self.scheduler is not None:
            return
        self.saved = None
        counts = [len(group["params"]) for group in self.optimizer.param_groups]
        parts = [[self.twins.pop(0) for _ in range(count)] for count in counts]
        self.optimizer.param_groups.reverse()
        self.options.reverse()
        self.twins = [twin for part in reversed(parts) for twin in part]

    def moved(self, data: st.DataObject) -> None:
        """A parameter goes to the end of another group that cuts parameters alike."""
        self.saved = None
        at, to = (data.draw(st.integers(0, len(self.options) - 1)) for _ in range(2))
        source, target = self.optimizer.param_groups[at], self.optimizer.param_groups[to]
        alike = all(self.options[at].get(key) == self.options[to].get(key) for key in ("view", "algorithm"))
        if not source["params"] or not alike or at == to:
            return
        rows, p = self.rows(), source["params"].pop()
        target["params"].append(p)
        twins = {id(q): twin for q, twin, *_ in rows}
        self.twins = [twins[id(q)] for q in self.params()]

    def rate(self, data: st.DataObject) -> None:
        """A number, or a tensor of one element; a tensor that is there is written in place, or replaced."""
        group, lr = (data.draw(st.sampled_from(x)) for x in (self.optimizer.param_groups, (0.0, 0.03, 0.4)))
        kind = data.draw(st.sampled_from(("number", "tensor", "in place")))
        if self.scheduler is None and kind == "in place" and isinstance(group["lr"], Tensor):
            group["lr"].fill_(lr)
        elif self.scheduler is None:
            group["lr"] = lr if kind == "number" else torch.tensor(lr, dtype=torch.float64)

    def edited(self, data: st.DataObject) -> None:
        """An option of a group, in place."""
        key = data.draw(st.sampled_from(("nesterov", "maximize", "radius", "momentum", "weight_decay")))
        at = data.draw(st.integers(0, len(self.options) - 1))
        options, group = self.options[at], self.optimizer.param_groups[at]
        if options.get("algorithm") == "adamw" or (options.get("constrained") and key == "weight_decay"):
            return
        values = {"radius": (0.5, 2.0), "momentum": (0.0, 0.8), "weight_decay": (0.0, 0.2)}
        options[key] = group[key] = data.draw(st.sampled_from(values.get(key, (False, True))))

    def other_memory(self, data: st.DataObject) -> None:
        """`p.data` with the same values elsewhere."""
        p = data.draw(st.sampled_from(self.params()))
        old, kind = p.data, data.draw(st.sampled_from(("memory", "strides", "part")))
        part = torch.empty((*old.shape[:-1], 2 * old.shape[-1]), dtype=old.dtype)[..., ::2].copy_(old)
        strides = old.mT.contiguous().mT if old.ndim > 1 else part
        p.data = {"memory": old.clone(), "strides": strides, "part": part}[kind]

    def states(self, data: st.DataObject) -> None:
        """Dropped, or replaced by equal ones."""
        kind = data.draw(st.sampled_from(("dropped", "copied", "buffers", "cleared")))
        rows = self.rows() if kind == "cleared" else [data.draw(st.sampled_from(self.rows()))]
        for p, twin, *_ in rows:
            if kind in ("dropped", "cleared"):
                self.optimizer.state.pop(p, None)
                twin.buffers, twin.step, twin.skipped = {"m": None}, 0, 0
            elif kind == "copied" and p in self.optimizer.state:
                self.optimizer.state[p] = copy.deepcopy(self.optimizer.state[p])
            else:
                entry = self.optimizer.state.get(p, {})
                entry.update({key: value.clone() for key, value in entry.items()})

    def hooked(self, data: st.DataObject) -> None:
        """A hook of the user's that scales gradients before a step comes or goes."""
        factor = data.draw(st.sampled_from((1.0, 0.5)))

        def scale(optimizer: Any, *_: Any) -> None:
            for p in (p for group in optimizer.param_groups for p in group["params"] if p.grad is not None):
                p.grad = p.grad * self.hook

        if self.hook == 1.0 and factor != 1.0:
            self.handle = self.optimizer.register_step_pre_hook(scale)
        elif self.hook != 1.0 and factor == 1.0:
            self.handle.remove()
        self.hook = factor

    def unhooked(self) -> None:
        """A copy has no hooks, as in torch."""
        if self.hook != 1.0:
            self.handle.remove()
        self.hook = 1.0

    @rule(clone=st.sampled_from((copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o)))))
    def copied(self, clone: Callable[[Any], Any]) -> None:
        """The copy goes on; a scheduler belongs to the optimizer that it was made for."""
        self.unhooked()
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
        weights = [[p.detach().clone() for p in group["params"]] for group in self.optimizer.param_groups]
        file = through_disk(self.optimizer.state_dict())
        self.saved = (file, weights, copy.deepcopy(self.twins), copy.deepcopy(self.options))

    @rule(anew=st.booleans())
    @precondition(lambda self: self.saved is not None)
    def load(self, anew: bool) -> None:
        """Into an optimizer made anew, as after a restart, or into the same one, as people go back to the best."""
        self.scheduler = None
        assert self.saved is not None
        file, weights, twins, options = copy.deepcopy(self.saved)
        self.twins = twins
        if anew:
            self.unhooked()
            self.options = options
            pairs = zip(weights, options, strict=True)
            made = [{**each, "params": [nn.Parameter(w) for w in part], "lr": 0.123} for part, each in pairs]
            self.optimizer = LMOOptimizer(made, 0.1, 0.9, ball="sign", on_nonfinite=self.nonfinite)
        elif options != self.options:  # the algorithm stays as it is here, with a warning
            self.optimizer.param_groups = [
                {**group, **{key: old[key] for key in ("nesterov", "maximize", "radius") if key in old}}
                for group, old in zip(self.optimizer.param_groups, options, strict=True)
            ]
            self.options = options
        for p, w in zip(self.params(), [w for part in weights for w in part], strict=True):
            p.data = w.clone()
        self.optimizer.load_state_dict(copy.deepcopy(file))
        for group, old in zip(self.optimizer.param_groups, file["param_groups"], strict=True):
            same = {"params": [], "name": ""}  # names count groups in the order in which they were made
            assert not group["params"] or {**group, **same} == {**old, **same}

    @invariant()
    def equals_the_twin(self) -> None:
        if not hasattr(self, "optimizer"):
            return
        for p, twin, *_ in self.rows():
            size = 1.0 + float(twin.w.abs().max())
            assert float((p.detach() - twin.w).abs().max()) <= TOLERANCE * size
            state = self.optimizer.state.get(p, {})
            assert int(state.get("step", 0)) == twin.step
            assert int(state.get("skipped", 0)) == twin.skipped


CHANGES = (
    *(Programs.groups_replaced, Programs.groups_reversed, Programs.moved, Programs.rate, Programs.edited),
    *(Programs.other_memory, Programs.states, Programs.hooked),
)
"""What people do between two steps."""

TestPrograms = Programs.TestCase
TestPrograms.settings = fuzz(30, stateful_step_count=15)
