"""What other people's code does with groups, rates, kernels and checkpoints has the meant effect, or is named."""

from __future__ import annotations

import copy
import subprocess
import sys
import warnings
from typing import Any

import pytest
import torch
from torch import nn

from inexact_muon import Muon
from inexact_muon.optim import load_foreign, routes
from inexact_muon.routing.reading.values import Value
from torch_features import HAS_MUON

WIDTH = 16
NAMES = ("out", "fc", "proj", "decoder", "linear", "final", "readout", "generator", "to_words", "last", "o")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Bytes(nn.Module):
    """As many words as the model is wide: names and widths do not tell the output."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name, self.words = name, nn.Embedding(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        setattr(self, name, nn.Linear(WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.words(x)
        for block in self.blocks:
            h = block(h)
        return getattr(self, self.name)(h)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.rnn, self.proj = nn.Embedding(16, 16), nn.GRU(16, 16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        h, _ = self.rnn(self.words(x))
        return {"logits": self.proj(h)}


class Sampler(nn.Module):
    """The output is fed back, as in sampling."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = self.second(torch.relu(self.first(x)))
        return x


class Lists(nn.Module):
    """Layers by number, the last of them without an activation."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for i in range(len(self.layers)):
            x = self.layers[i](x)
            if i < len(self.layers) - 1:
                x = x.relu()
        return x


class Step(nn.Module):
    """Lightning's style: no forward, the loss comes from training_step; and a checkpointed call."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.fc = nn.Linear(16, 16), nn.Linear(16, 16)

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        x, y = batch
        h = torch.utils.checkpoint.checkpoint(self.body, x, use_reentrant=False)
        return nn.functional.cross_entropy(self.fc(h), y)


def outputs(model: nn.Module) -> list[str]:
    return [route.name for route in routes(model) if route.role == "head"]


@pytest.mark.parametrize("name", NAMES)
def test_an_output_as_wide_as_the_model_is_found_in_the_forward_pass(name: str) -> None:
    assert outputs(Bytes(name)) == [f"{name}.weight"]
    assert all(route.sure for route in routes(Bytes(name)))


@pytest.mark.parametrize(
    ("model", "expected"),
    [(Recurrent, "proj"), (Sampler, "second"), (Lists, "layers.2"), (Step, "fc")],
)
def test_outputs_of_other_forward_passes(model: type[nn.Module], expected: str) -> None:
    assert outputs(model()) == [f"{expected}.weight"]


def test_without_a_source_the_last_layer_is_unsure_and_there_is_one_warning() -> None:
    space: dict[str, Any] = {"nn": nn, "Bytes": Bytes}
    exec("class Typed(Bytes):\n    def forward(self, x):\n        return self.fc(self.words(x))", space)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        optimizer = Muon.for_model(space["Typed"]("fc"), lr=0.02)
    assert optimizer.unsure == {"fc.weight"}
    assert ["fc.weight" in str(w.message) and "output layer" in str(w.message) for w in seen] == [True]


TYPED = """
class {name}(nn.Module):
    def __init__(self):
        super().__init__()
        {body}

    def forward(self, x):
        return x
"""
UNREAD = {
    "self.a, self.out, self.aux = (nn.Linear(16, 16) for _ in range(3))": {"out.weight", "aux.weight"},
    "self.actor, self.critic = (nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, n)) for n in (16, 1))": {
        "actor.2.weight"
    },
    "self.members = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16)) for _ in range(2))": {
        *("members.0.1.weight", "members.1.1.weight"),
    },
    "self.there, self.block, self.back = nn.Linear(8, 16), nn.Linear(16, 32), nn.Linear(32, 8)": set[str](),
    "self.conv1, self.conv2, self.fc1, self.fc2 = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 8, 3), nn.Linear(72, 16), "
    "nn.Linear(16, 10)": set[str](),
    "self.fc1, self.fc2, self.fc3 = nn.Linear(64, 16), nn.Linear(16, 16), nn.Linear(16, 10)": set[str](),
}
"""Layers of a model whose source cannot be read -> those that may be outputs."""


@pytest.mark.parametrize("body", UNREAD)
def test_every_layer_that_may_be_an_output_without_a_source_is_unsure(body: str) -> None:
    space: dict[str, Any] = {"nn": nn}
    exec(TYPED.format(name="Typed", body=body), space)
    made = routes(space["Typed"]())
    assert {route.name for route in made if not route.sure} == UNREAD[body]
    expected = 1 if UNREAD[body] else 0
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        Muon.for_model(space["Typed"](), lr=0.02)
    assert len(seen) == expected


def test_an_unknown_number_does_not_decide_a_condition() -> None:
    from inexact_muon.routing.reading.values import joined, of

    assert not joined([Value(), of(True)]).known


class Custom(nn.Module):
    """Layers that keep their weight in a plain parameter."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Module() for _ in range(count))
        for layer in self.layers:
            layer.matrix = nn.Parameter(torch.randn(16, 16))
        self.head = nn.Linear(16, 3)


def test_the_warning_names_a_glob_that_ends_it() -> None:
    with pytest.warns(UserWarning, match=r'\("layers\.\*\.matrix", "lmo"\)'):
        Muon.for_model(Custom(3), lr=0.02)
    optimizer = Muon.for_model(Custom(3), lr=0.02, rules=[("layers.*.matrix", "lmo")], weight_decay=0.1)
    assert {g["weight_decay"] for g in optimizer.param_groups if g["algorithm"] == "lmo"} == {0.1}


def test_a_rule_for_most_of_the_lost_matrices_ends_the_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Muon.for_model(Custom(8), lr=0.02, rules=[("layers.[0-6].matrix", "lmo")])


def test_one_factor_scales_both_rates() -> None:
    rules = [("0.*", {"lr_scale": 0.5})]
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = Muon.for_model(model, lr=0.02, adamw={"lr": 0.004}, rules=rules)
    rates = {name: group["lr"] for name, _, group in optimizer.named()}
    assert (rates["0.weight"], rates["0.bias"], rates["2.weight"], rates["2.bias"]) == (0.01, 0.002, 0.02, 0.004)


@pytest.mark.parametrize("others", [[], [(12, 8)], [(12, 8), (8, 4, 3)]])
@pytest.mark.parametrize("make", [nn.Conv1d, nn.Conv2d, nn.Conv3d])
def test_kernels_are_flattened_without_a_model(make: type[nn.Conv2d], others: list[tuple[int, ...]]) -> None:
    kernel = make(4, 8, 3).weight
    nn.init.zeros_(kernel)
    params = [kernel, *(nn.Parameter(torch.zeros(shape)) for shape in others)]
    optimizer = Muon(params, lr=1.0, polar="exact-svd", weight_decay=0.0, adjust_lr_fn="none")
    for p in params:
        p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(0))
    optimizer.step()
    values = torch.linalg.svdvals(kernel.detach().flatten(1))
    torch.testing.assert_close(values, torch.ones(8), rtol=1e-4, atol=1e-4)


def test_a_stack_or_a_kernel_is_not_guessed() -> None:
    experts = nn.Parameter(torch.zeros(4, 32, 65))
    with pytest.raises(ValueError, match=r"\(4, 32, 65\) may be a stack of matrices or a kernel: set view='whole'"):
        Muon([experts])
    optimizer = Muon([{"params": [experts], "view": "whole"}], lr=1.0, polar="exact-svd", adjust_lr_fn="none")
    experts.grad = torch.randn(4, 32, 65, generator=torch.Generator().manual_seed(0))
    optimizer.step()
    torch.testing.assert_close(torch.linalg.svdvals(experts.detach()), torch.ones(4, 32), rtol=1e-4, atol=1e-4)


def test_every_parameter_of_several_dimensions_in_one_group() -> None:
    """KellerJordan's recipe, `p.ndim >= 2`, is what for_model gives these layers."""
    model = nn.Sequential(nn.Conv1d(4, 8, 3), nn.ReLU(), nn.Conv1d(8, 8, 5), nn.ReLU(), nn.Conv1d(8, 4, 1))
    twin = copy.deepcopy(model)
    recipe = Muon([p for p in model.parameters() if p.ndim >= 2], lr=0.02, polar="exact-svd")
    whole = Muon.for_model(twin, lr=0.02, polar="exact-svd", rules=[("4.weight", "lmo")])
    for net, optimizer in ((model, recipe), (twin, whole)):
        net(torch.randn(2, 4, 16, generator=torch.Generator().manual_seed(0))).square().sum().backward()
        optimizer.step()
    for i in (0, 2, 4):
        torch.testing.assert_close(model[i].weight, twin[i].weight)


def test_groups_that_say_use_muon() -> None:
    matrix, bias = nn.Parameter(torch.ones(4, 4)), nn.Parameter(torch.ones(4))
    groups = [{"params": [matrix], "use_muon": True}, {"params": [bias], "use_muon": False, "lr": 3e-4}]
    assert [group["algorithm"] for group in Muon(groups, lr=0.02).param_groups] == ["lmo", "adamw"]


def test_unknown_options_are_kept_and_near_misses_named() -> None:
    p = nn.Parameter(torch.ones(4, 4))
    group = Muon([{"params": [p], "lr_scale": 0.5, "rho": 0.05, "tag": "body"}]).param_groups[0]
    assert (group["lr_scale"], group["rho"], group["tag"]) == (0.5, 0.05, "body")
    with pytest.warns(UserWarning, match="'weight_decy', which is not used: is it 'weight_decay'"):
        Muon([{"params": [p], "weight_decy": 0.0}])
    with pytest.warns(UserWarning, match="'learning_rate', which is not used: is it 'lr'"):
        Muon([{"params": [p], "learning_rate": 0.1}])
    with pytest.raises(ValueError, match="'polar' is an option of the optimizer"):
        Muon([{"params": [p], "polar": "exact-svd"}])


@pytest.mark.parametrize(
    ("name", "option"),
    [
        *(("Lr", "lr"), ("LR", "lr"), ("Momentum", "momentum"), ("WD", "weight_decay"), ("learningRate", "lr")),
        *(("weightDecay", "weight_decay"), ("use_moun", "use_muon"), ("usemuon", "use_muon")),
    ],
)
def test_other_spellings_are_near_misses(name: str, option: str) -> None:
    with pytest.warns(UserWarning, match=f"is it {option!r}"):
        Muon([{"params": [nn.Parameter(torch.ones(4, 4))], name: 0.5, 3: "kept"}])


def test_rules_that_are_no_pairs_are_one_sentence() -> None:
    with pytest.raises(TypeError, match="rules is a list of pairs"):
        Muon.for_model(nn.Linear(4, 4), 0.1, rules={"weight": "lmo"})  # type: ignore[arg-type]


def test_one_rate_for_all_groups_is_noticed_once() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = Muon.for_model(model, lr=0.02, adamw={"lr": 3e-3})
    for group in optimizer.param_groups:
        group["lr"] = 6e-4
    with pytest.warns(UserWarning, match="all groups now have lr=0.0006"):
        optimizer.step()
    optimizer.step()  # a second warning would be an error
    optimizer.add_param_group({"params": [("more", nn.Parameter(torch.ones(8, 8)))], "lr": 6e-4})
    optimizer.step()


@pytest.mark.parametrize("lr", [0.1, torch.tensor(0.1)], ids=str)
def test_one_rate_in_tensors_is_noticed_too(lr: float | torch.Tensor) -> None:
    layers = nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)
    optimizer = Muon.for_model(nn.Sequential(*layers), lr)
    optimizer.step()
    for group in optimizer.param_groups:
        group["lr"] = 0.02 if group["algorithm"] == "adamw" else torch.tensor(0.02)
    with pytest.warns(UserWarning, match="all groups now have lr=0.02"):
        optimizer.step()


@pytest.mark.parametrize("apart", ["lmo", "adamw"])
def test_one_rate_for_all_groups_but_one_is_noticed_too(apart: str) -> None:
    """As of a group that its user leaves out of the schedule."""
    layers = nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)
    rules = [("0.weight" if apart == "lmo" else "4.weight", {"lr": 0.007})]
    optimizer = Muon.for_model(nn.Sequential(*layers), 0.1, rules=rules)
    for group in optimizer.param_groups:
        group["lr"] = group["lr"] if group["lr"] == 0.007 else 0.02
    with pytest.warns(UserWarning, match="groups of both algorithms now have lr=0.02"):
        optimizer.step()


@pytest.mark.parametrize("copied", [False, True])
def test_one_schedule_with_a_factor_for_each_layer_is_noticed_too(copied: bool) -> None:
    """As in layer decay, `lr * factor` in a loop that knows one lr; also after a copy."""
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    rules = [("0.*", {"lr_scale": 0.5}), ("4.weight", {"lr_scale": 0.5})]
    optimizer = Muon.for_model(model, lr=0.02, adamw={"lr": 3e-3}, rules=rules)
    optimizer = copy.deepcopy(optimizer) if copied else optimizer
    factors = [0.5 if group["lr"] in (0.01, 0.0015) else 1.0 for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] *= 0.1
    optimizer.step()
    for group, factor in zip(optimizer.param_groups, factors, strict=True):
        group["lr"] = 6e-4 * factor
    with pytest.warns(UserWarning, match="all groups now have lr=0.0003, 0.0006"):
        optimizer.step()


def test_rates_that_were_equal_or_are_zero_are_no_reason_to_warn() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    Muon.for_model(model, lr=0.02, adamw={"lr": 0.02}).step()
    warm = Muon.for_model(model, lr=0.02, adamw={"lr": 3e-3})
    for group in warm.param_groups:
        group["lr"] = 0.0
    warm.step()
    annealed = Muon.for_model(model, lr=0.02, adamw={"lr": 3e-3})
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(annealed, 4, eta_min=1e-5)
    for _ in range(6):
        annealed.step()
        schedule.step()


@pytest.mark.parametrize(
    "schedule",
    [
        lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.02, total_steps=10),
        lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.02, total_steps=10, div_factor=1e4, cycle_momentum=False),
        lambda o: torch.optim.lr_scheduler.CyclicLR(o, 1e-6, 1e-2, step_size_up=2, cycle_momentum=False),
    ],
)
def test_schedules_of_one_rate_are_noticed(schedule: Any) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = Muon.for_model(model, lr=0.02, adamw={"lr": 3e-3})
    scheduler = schedule(optimizer)

    def train() -> None:
        for _ in range(4):
            optimizer.step()
            scheduler.step()

    with pytest.warns(UserWarning, match="all groups now have lr="):
        train()


def test_one_entry_of_a_file_is_not_loaded_twice() -> None:
    source = Muon([("module.weight", nn.Parameter(torch.ones(4, 4)))])
    source.param_groups[0]["params"][0].grad = torch.ones(4, 4)
    source.step()
    pair = [("weight", nn.Parameter(torch.ones(4, 4))), ("module.weight", nn.Parameter(torch.ones(4, 4)))]
    target = Muon(pair)
    with pytest.warns(UserWarning, match="not in the checkpoint start with empty state: weight"):
        target.load_state_dict(source.state_dict())
    assert "momentum_buffer" not in target.state[pair[0][1]]
    assert "momentum_buffer" in target.state[pair[1][1]]


def early(momentum: float = 0.95) -> dict[str, Any]:
    """A checkpoint of an early Muon: b <- mu b + g, and the number of steps without coefficients."""
    group = {"params": [0], "lr": 0.02, "weight_decay": 0.0, "momentum": momentum, "nesterov": True, "ns_steps": 5}
    return {"state": {0: {"momentum_buffer": torch.full((4, 4), 3.0)}}, "param_groups": [group]}


def test_a_momentum_that_may_be_a_sum_is_not_guessed() -> None:
    p = nn.Parameter(torch.ones(4, 4))
    with pytest.raises(ValueError, match="sums=True"):
        Muon([p], ns_steps=5).load_state_dict(early())
    optimizer = Muon([("w", p)], ns_steps=5)
    with pytest.raises(ValueError, match="pass sums=True or False"):
        load_foreign(optimizer, early(), ["w"])
    load_foreign(optimizer, early(), ["w"], sums=True)
    torch.testing.assert_close(optimizer.state[p]["momentum_buffer"], torch.full((4, 4), 0.15))


@pytest.mark.parametrize(
    "more",
    [
        {"nesterov": True},
        {"nesterov": True, "steps": 5},
        {"nesterov": True, "orthogonalize_iters": 5},
        {"backend": "svd", "rank": 0},
        {"betas": (0.9, 0.99)},
        {"mu": 0.95, "betas": (0.9, 0.95), "algorithm": "muon"},
    ],
    ids=str,
)
def test_only_momenta_that_are_known_to_be_averages_are_taken_for_averages(more: dict[str, Any]) -> None:
    file = early()
    del file["param_groups"][0]["ns_steps"], file["param_groups"][0]["nesterov"]
    p = nn.Parameter(torch.ones(4, 4))
    load_foreign(Muon([("w", p)]), file, ["w"])  # KellerJordan's options
    file["param_groups"][0].update(more)
    optimizer = Muon([("w", p)])
    with pytest.raises(ValueError, match="pass sums=True or False"):
        load_foreign(optimizer, file, ["w"])
    with pytest.raises(ValueError, match="is a sum, or may be one"):
        Muon([p]).load_state_dict(file)
    assert not optimizer.state


class Nested(nn.Module):
    """A name that the wrappers' names can be taken for."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 4))
        self.module = nn.Linear(4, 4, bias=False)


@pytest.mark.parametrize("there", ["", "module.", "_orig_mod.", "_orig_mod.module.", "module._fsdp_wrapped_module."])
@pytest.mark.parametrize("here", ["", "module.", "module._orig_mod."])
@pytest.mark.parametrize("foreign", [True, False])
def test_wrappers_in_front_of_names(there: str, here: str, foreign: bool) -> None:
    if foreign and not HAS_MUON:
        pytest.skip("torch.optim.Muon is not there")
    theirs, ours = Nested(), Nested()
    make = torch.optim.Muon if foreign else Muon
    source = make([(there + name, p) for name, p in theirs.named_parameters()], lr=0.1)
    for i, p in enumerate(theirs.parameters()):
        p.grad = torch.full((4, 4), i + 1.0)
    source.step()
    target = Muon([(here + name, p) for name, p in ours.named_parameters()])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        load_foreign(target, source.state_dict()) if foreign else target.load_state_dict(source.state_dict())
    for p, q in zip(theirs.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(target.state[q]["momentum_buffer"], source.state[p]["momentum_buffer"])


def test_timm_and_pytorch_optimizer_by_parameter() -> None:
    weight, bias = nn.Parameter(torch.ones(4, 4)), nn.Parameter(torch.ones(4))
    moments = {"step": torch.tensor(2.0), "exp_avg": torch.full((4,), 0.1), "exp_avg_sq": torch.full((4,), 0.2)}
    shared = {"lr": 0.02, "weight_decay": 0.0, "momentum": 0.95, "nesterov": False, "ns_steps": 5, "betas": (0.9, 0.95)}
    timm = {"ns_coefficients": "original", "fallback_lr_scale": 0.5, "algo": "muon", "eps": 1e-7, "params": [0, 1]}
    buffer = {"use_muon": True, "momentum_buffer": torch.full((4, 4), 0.3)}
    saved = {"state": {0: buffer, 1: {"use_muon": False, **moments}}, "param_groups": [{**shared, **timm}]}
    groups = [{"params": [("w", weight)]}, {"params": [("b", bias)], "algorithm": "adamw"}]
    optimizer = Muon(groups, nesterov=False, ns_steps=5, weight_decay=0.0)
    load_foreign(optimizer, saved, ["w", "b"])
    assert torch.equal(optimizer.state[weight]["momentum_buffer"], buffer["momentum_buffer"])
    assert torch.equal(optimizer.state[bias]["exp_avg"], moments["exp_avg"])
    assert [group["lr"] for group in optimizer.param_groups] == [0.02, 0.01]
    for key, value, words in (("algo", "adamuon", "AdaMuon"), ("storage_dtype", "float32", "heavyball")):
        saved["param_groups"][0][key] = value
        with pytest.raises(ValueError, match=words):
            load_foreign(optimizer, saved, ["w", "b"])
        saved["param_groups"][0][key] = "muon"


def test_printing_an_explanation_draws_no_random_number() -> None:
    code = """
import random
from torch import nn
from inexact_muon import Muon, explain
optimizer = Muon.for_model(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), lr=0.02)
state = random.getstate()
str(explain(optimizer))
assert random.getstate() == state
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_view_of_rows_on_a_stack_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="cuts a matrix"):
        Muon([{"params": [nn.Parameter(torch.ones(2, 4, 4))], "view": "stacked:2"}])
