"""Every parameter gets what it should, shows why, and its scale comes from the matrix that the oracle saw."""

from typing import Any

import pytest
import torch
from torch import nn

from inexact_muon import Muon, Scion, explain, lmo, polar
from inexact_muon.optim import Flatten, LMOOptimizer, Split, Whole, presets, routes
from inexact_muon.optim.views import parse
from models import MODELS

EXPECTED: dict[str, dict[str, str]] = {
    "gpt": {
        "tokens.weight": "adamw",
        "positions.weight": "adamw",
        "blocks.0.norm1.weight": "adamw",
        "blocks.0.q.weight": "whole()",
        "blocks.1.fc1.weight": "whole()",
        "blocks.1.fc1.bias": "adamw",
        "lm_head.weight": "adamw",
    },
    "tied": {"tokens.weight": "adamw", "blocks.0.proj.weight": "whole()"},
    "vit": {
        "patch.weight": "flatten()",
        "blocks.0.qkv.weight": "split(rows=3)",
        "blocks.0.qkv.bias": "adamw",
        "attention.in_proj_weight": "split(rows=3)",
        "attention.out_proj.weight": "whole()",
        "head.weight": "adamw",
    },
    "resnet": {
        "stem.weight": "flatten()",
        "bn1.weight": "adamw",
        "conv.weight": "flatten()",
        "depthwise.weight": "adamw",
        "fc.weight": "adamw",
    },
    "moe": {
        "embed.weight": "adamw",
        "router.weight": "whole()",
        "up": "whole()",
        "down": "whole()",
        "out.weight": "adamw",
    },
}


@pytest.mark.parametrize("name", MODELS)
def test_routes(name: str) -> None:
    made = {r.name: r for r in routes(MODELS[name][0]())}
    for parameter, expected in EXPECTED[name].items():
        route = made[parameter]
        assert (str(route.view) if route.algorithm == "lmo" else "adamw") == expected, (parameter, route.why)
        assert route.why


def test_every_parameter_once_and_ties_whatever_the_order() -> None:
    for make, _ in MODELS.values():
        model = make()
        assert sorted(id(r.parameter) for r in routes(model)) == sorted(id(p) for p in model.parameters())
    head, embedding = nn.Linear(8, 20, bias=False), nn.Embedding(20, 8)
    embedding.weight = head.weight
    for order in ((head, embedding), (embedding, head)):
        (route,) = routes(nn.ModuleList(order))
        assert route.algorithm == "adamw"
        assert "embedding" in route.why


def test_frozen_parameters_are_left_out() -> None:
    model = MODELS["gpt"][0]()
    model.blocks[0].requires_grad_(False)
    assert not any(r.name.startswith("blocks.0") for r in routes(model))


def test_rules_come_first() -> None:
    made = {r.name: r for r in routes(MODELS["gpt"][0](), rules=[("blocks.0.q.*", "adamw"), ("lm_head.*", "lmo")])}
    assert made["blocks.0.q.weight"].algorithm == "adamw"
    assert "blocks.0.q.*" in made["blocks.0.q.weight"].why
    assert made["lm_head.weight"].algorithm == "lmo"
    assert made["blocks.1.q.weight"].algorithm == "lmo"


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ([("*.bias", "lmo")], "cannot get a matrix LMO"),
        ([("*", "muon")], "say lmo or adamw"),
        ([("*", "adamw"), ("block.0.q.*", "adamw")], r"'block.0.q.\*' matches no parameter .* near: blocks.0.q.weight"),
    ],
)
def test_bad_rules(rules: list[tuple[str, str]], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        routes(MODELS["gpt"][0](), rules=rules)


def test_a_split_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match=r"split: 'fc1.weight' matches no parameter"):
        routes(MODELS["vit"][0](), split={"fc1.weight": 2})


def test_a_rule_may_name_what_is_frozen() -> None:
    model = MODELS["gpt"][0]()
    model.blocks[0].requires_grad_(False)
    assert routes(model, rules=[("blocks.0.*", "adamw")]) == routes(model)


@pytest.mark.parametrize("make", [Muon, Scion, presets.sign_sgd])
def test_a_model_is_not_its_parameters(make: Any) -> None:
    with pytest.raises(TypeError, match=r"got the model Linear: .* Muon.for_model"):
        make(nn.Linear(4, 4), lr=0.1)


def test_split_by_option() -> None:
    model = MODELS["vit"][0]()
    made = {r.name: r for r in routes(model, split={"*.fc1.weight": (16, 48)})}
    assert made["blocks.0.fc1.weight"].view == Split((16, 48))
    assert made["blocks.0.qkv.weight"].view == Whole()


@pytest.mark.parametrize("name", MODELS)
def test_one_optimizer_trains_the_whole_model(name: str) -> None:
    torch.manual_seed(0)
    make, inputs = MODELS[name]
    model = make()
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    optimizer = Muon.for_model(model, 0.02, adamw={"lr": 0.01})
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    for n, p in model.named_parameters():
        if p.grad is not None and bool(p.grad.any()):
            assert not torch.equal(p, before[n]), n


def test_adamw_is_torchs() -> None:
    generator = torch.Generator().manual_seed(0)
    ours = [nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((5,), (3, 4))]
    theirs = [nn.Parameter(p.detach().clone()) for p in ours]
    options = {"lr": 0.01, "betas": (0.8, 0.9), "weight_decay": 0.1}
    mine = Muon([{"params": ours, "algorithm": "adamw", "eps": 1e-6, **options}])
    reference = torch.optim.AdamW(theirs, eps=1e-6, **options)
    for _ in range(20):
        for a, b in zip(ours, theirs, strict=True):
            a.grad = torch.randn(a.shape, generator=generator)
            b.grad = a.grad.clone()
        mine.step()
        reference.step()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.detach(), b.detach(), rtol=1e-5, atol=1e-6)


def test_scale_of_a_kernel_is_that_of_its_matrix() -> None:
    """timm once read it from the kernel's sides, and steps were 45 to 512 times too small."""
    p = nn.Parameter(torch.zeros(64, 2, 3, 3))
    g = torch.randn(64, 2, 3, 3, generator=torch.Generator().manual_seed(0))
    optimizer = LMOOptimizer([p], 1.0, 0.0, ball=lmo.Spectral(polar=polar.ExactSVD()), scale="original", view=Flatten())
    p.grad = g
    optimizer.step()
    matrix = p.detach().flatten(1)
    torch.testing.assert_close(torch.linalg.matrix_norm(matrix, 2), torch.tensor((64 / 18) ** 0.5))


def test_blocks_of_a_fused_weight_are_independent() -> None:
    p = nn.Parameter(torch.zeros(12, 4))
    g = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))
    g[4:8] *= 1e6
    optimizer = LMOOptimizer([p], 1.0, 0.0, ball=lmo.Spectral(polar=polar.ExactSVD()), view=Split(3))
    p.grad = g
    optimizer.step()
    for block in p.detach().split(4):
        torch.testing.assert_close(block.mT @ block, torch.eye(4), atol=1e-5, rtol=0)


def test_experts_are_a_batch() -> None:
    """The expert axis is never a matrix axis."""
    p = nn.Parameter(torch.zeros(3, 4, 6))
    p.grad = torch.randn(3, 4, 6, generator=torch.Generator().manual_seed(0))
    LMOOptimizer([p], 1.0, 0.0, ball=lmo.Spectral(polar=polar.ExactSVD()), length="steepest").step()
    for w, g in zip(p.detach(), p.grad, strict=True):
        u, s, vh = torch.linalg.svd(g, full_matrices=False)
        torch.testing.assert_close(w, -s.sum() * u @ vh, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("view", [Whole(), Flatten(), Split(3), Split((5, 7))])
def test_views_are_values_with_text(view: object) -> None:
    assert parse(str(view)) == view


def test_a_split_that_does_not_fit() -> None:
    with pytest.raises(ValueError, match="does not divide the 8 rows"):
        LMOOptimizer([nn.Parameter(torch.zeros(8, 4))], 0.1, 0.9, ball="spectral", view="split:3")


@pytest.mark.parametrize("name", MODELS)
def test_explain(name: str) -> None:
    model = MODELS[name][0]()
    optimizer = Muon.for_model(model, 0.02)
    explanation = explain(optimizer)
    assert [line.parameter for line in explanation.lines] == [r.name for r in routes(model)]
    assert sum(line.cost for line in explanation.lines) == pytest.approx(1.0)
    text = str(explanation)
    for line in explanation.lines:
        assert line.parameter in text
        assert line.why
        if line.algorithm == "spectral":
            assert line.delta is not None
            assert line.delta <= 0.065
    assert not explanation.warnings


def test_explain_counts_what_runs() -> None:
    model = nn.Sequential(nn.Conv2d(2, 64, 3), nn.Conv2d(64, 8, 1))
    lines = {line.parameter: line for line in explain(Muon.for_model(model, 0.02, polar="jordan:3")).lines}
    assert lines["0.weight"].flops == polar.Jordan(3).flops(64, 18)
    assert lines["0.weight"].matrices == "64x18"
    assert lines["0.weight"].scale == pytest.approx((64 / 18) ** 0.5)


def test_explain_warns() -> None:
    tiny = nn.Sequential(nn.Embedding(1000, 64), nn.Linear(64, 8), nn.Linear(8, 4))
    (warning,) = explain(Muon.for_model(tiny, 0.02)).warnings
    assert "of the entries get an LMO" in warning
    flat = nn.ParameterDict({"flat": nn.Parameter(torch.zeros(2_000_000))})
    assert any("FSDP1" in w for w in explain(Muon.for_model(flat, 0.02)).warnings)


def test_explain_without_names() -> None:
    lines = explain(Muon([nn.Parameter(torch.zeros(4, 6))])).lines
    assert (lines[0].parameter, lines[0].why) == ("0", "given")
    with pytest.raises(TypeError, match="needs an optimizer of this library"):
        explain(torch.optim.SGD([nn.Parameter(torch.zeros(2))]))  # type: ignore[arg-type]


def test_schedulers_move_all_groups_from_their_own_lr() -> None:
    optimizer = Muon.for_model(MODELS["gpt"][0](), 0.02, adamw={"lr": 0.001})
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    optimizer.step()
    scheduler.step()
    assert {g["lr"] for g in optimizer.param_groups} == {0.01, 0.0005}


def test_empty_models_are_refused() -> None:
    with pytest.raises(ValueError, match="no parameter that requires a gradient"):
        Muon.for_model(nn.ReLU(), 0.02)
