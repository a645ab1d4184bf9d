"""Every parameter gets what it should, shows why, and its scale comes from the matrix that the oracle saw."""

import warnings
from typing import Any

import pytest
import torch
from torch import nn

from inexact_muon import Muon, Scion, explain, lmo, polar
from inexact_muon.optim import Flatten, LMOOptimizer, Split, Whole, presets, routes
from inexact_muon.views import parse
from models import MODELS
from role_cases import ROLES, Named, block, frozen, nano
from routing_table import check, check_step

EXACT = lmo.Spectral(polar=polar.ExactSVD())
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


@pytest.mark.parametrize("name", ROLES)
def test_roles(name: str) -> None:
    make, expected = ROLES[name]
    torch.manual_seed(0)
    model = make()
    check(model, expected)
    if name != "parametrisations":  # torch cannot make these there
        with torch.device("meta"):
            check(make(), expected)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_step(model)


def test_the_model_says_what_its_output_is() -> None:
    """Whatever it is called and wherever it lies; a part of the model may say it too."""

    class Saying(Named):
        def get_output_embeddings(self) -> nn.Module:
            return self.first

    model = Saying(first=nn.Linear(16, 16), blocks=nn.ModuleList([block(), block()]))
    for outer in (model, nn.ModuleDict({"a": model, "b": nn.LayerNorm(16)})):
        roles = {r.name.removeprefix("a."): r.role for r in routes(outer)}
        assert roles["first.weight"] == "head"
        assert roles["blocks.1.mlp.c_proj.weight"] == "hidden"


def test_old_weight_norm() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = Named(conv=nn.utils.weight_norm(nn.Conv1d(4, 8, 3)), head=nn.utils.weight_norm(nn.Linear(8, 3)))
    expected = {"conv.weight_v": "flatten() 8x12 @1", "head.weight_v": "adamw decay"}
    check(model, {**expected, r"\w+\.(weight_g|bias)": "adamw"})


def test_lora_as_parameters_of_the_layer() -> None:
    layer = nn.Linear(12, 20).requires_grad_(False)
    layer.lora_A, layer.lora_B = nn.Parameter(torch.zeros(2, 12)), nn.Parameter(torch.zeros(20, 2))
    turned = nn.Linear(12, 20).requires_grad_(False)
    turned.lora_A, turned.lora_B = nn.Parameter(torch.zeros(12, 2)), nn.Parameter(torch.zeros(2, 20))
    expected = {
        "a.lora_A": "whole() 2x12 @1",
        "a.lora_B": "whole() 20x2 @3.16",
        "b.lora_A": "transposed(inner=whole()) 2x12 @1",
        "b.lora_B": "transposed(inner=whole()) 20x2 @3.16",
    }
    check(Named(a=layer, b=turned), expected)


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
        (
            [("*", "adamw"), ("block.0.q.*", "adamw")],
            r"'block.0.q.\*' matches no parameter .* similar: blocks.0.q.weight",
        ),
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


def test_rules_with_options() -> None:
    rules: Any = [
        ("*.bias", {"weight_decay": 0.3}),
        ("*.h.0.*", {"lr": 0.01}),
        ("lm_head.*", {"algorithm": "lmo", "lr": 1.0}),
    ]
    model = nano(tied=False)
    optimizer = Muon.for_model(model, 0.02, rules=rules, weight_decay=0.1, polar="jordan:5")
    groups = {name: group for name, _, group in optimizer.named()}
    assert {groups[n]["weight_decay"] for n in groups if n.endswith("bias")} == {0.3}
    assert groups["transformer.h.0.attn.c_attn.weight"]["lr"] == 0.01
    assert groups["transformer.h.1.attn.c_attn.weight"]["lr"] == 0.02
    assert (groups["lm_head.weight"]["algorithm"], groups["lm_head.weight"]["lr"]) == ("lmo", 1.0)
    assert groups["transformer.h.0.ln_1.weight"]["weight_decay"] == 0.0
    with pytest.warns(UserWarning, match="option 'weight_decays', which is not used: is it 'weight_decay'"):
        Muon.for_model(nano(), 0.02, rules=[("*.bias", {"weight_decays": 0.3})])


def test_groups_have_readable_names() -> None:
    rules = [("lm_head.*", {"lr": 0.5}), ("transformer.h.0.mlp.*weight", "lmo")]
    optimizer = Muon.for_model(nano(tied=False), 0.02, rules=rules, polar="jordan:5")
    assert [group["name"] for group in optimizer.param_groups] == [
        "lmo split(rows=3)",
        "lmo",
        "adamw no decay",
        "adamw rule 'lm_head.*'",
    ]


def test_what_decays() -> None:
    """Matrices and untied outputs; what the model or one of its parts says does not, nor what a parameter says."""

    class Saying(Named):
        def no_weight_decay(self) -> set[str]:
            return {"0.attn.c_attn.weight"}

        def no_weight_decay_keywords(self) -> set[str]:
            return {"c_fc"}

    model = nano(tied=False)
    model.transformer.h = Saying(**{str(i): b for i, b in enumerate(model.transformer.h)})
    model.lm_head.weight._no_weight_decay = True
    decays = {r.name for r in routes(model) if r.decay}
    expected = ("0.attn.c_proj", "0.mlp.c_proj", "1.attn.c_attn", "1.attn.c_proj", "1.mlp.c_proj")
    assert decays == {f"transformer.h.{name}.weight" for name in expected}
    for name, _, group in Muon.for_model(model, 0.02, weight_decay=0.1, polar="jordan:5").named():
        assert group["weight_decay"] == (0.1 if name in decays else 0.0)


def test_rules_see_through_wrappers() -> None:
    rule = "transformer.h.0.*.weight"
    made = {r.name: r.rule for r in routes(Named(_orig_mod=nano(tied=False)), rules=[(rule, "adamw")])}
    assert made["_orig_mod.transformer.h.0.mlp.c_fc.weight"] == rule


def test_a_split_may_be_any_view() -> None:
    model = nano()
    for view in (Split(3, 4), "split(rows=3, groups=4)"):
        made = {r.name: r for r in routes(model, split={"*.c_attn.weight": view})}
        assert made["transformer.h.0.attn.c_attn.weight"].view == Split(3, 4)
    with pytest.raises(ValueError, match="convolution kernel, which cannot be split"):
        routes(nn.Conv2d(3, 4, 3), split={"weight": 2})
    with pytest.raises(ValueError, match="does not divide the 48 rows"):
        routes(model, split={"*.c_attn.weight": 5})


def test_lost_matrices_are_warned_of() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(16, 16))

    model = Named(own=Own(), hidden=nn.Linear(16, 16), head=nn.Linear(16, 3))
    with pytest.warns(UserWarning, match=r"50% of the entries of hidden matrices get AdamW \(own.weight\).*rules="):
        optimizer = Muon.for_model(model, 0.02)
    assert optimizer.why["own.weight"].startswith("unsure: 2-D parameter of Own")
    layers = nn.ModuleList([block(), block(), block(), Named(mlp=Named(c_fc=Own()))])
    with pytest.warns(UserWarning, match=r"same name in other blocks get the LMO \(3.mlp.c_fc.weight\)"):
        Muon.for_model(Named(layers=layers).layers, 0.02)
    for word in ("adamw", "lmo"):
        Muon.for_model(model, 0.02, rules=[("own.*", word)])


def test_for_model_wants_the_model() -> None:
    with pytest.raises(TypeError, match=r"got generator: write Muon.for_model\(model, lr\)"):
        Muon.for_model(nn.Linear(3, 4).parameters(), 0.02)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"weight has no shape yet: run a batch"):
        Muon.for_model(nn.LazyLinear(4), 0.02)


def test_unfrozen_parameters_join_their_kind() -> None:
    model = frozen(nano(tied=False), "transformer.h.0", "transformer.wte")
    options: Any = {"rules": [("*.ln_1.*", {"lr": 0.7})], "polar": "jordan:5"}
    optimizer = Muon.for_model(model, 0.02, **options)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    before = {name: group["name"] for name, _, group in optimizer.named()}
    optimizer.step()
    scheduler.step()
    assert optimizer.add_unfrozen(model) == []
    model.requires_grad_(True)
    added = optimizer.add_unfrozen(model)
    assert added == [name for name, _ in model.named_parameters() if name not in before]
    fresh = {name: group["name"] for name, _, group in Muon.for_model(model, 0.02, **options).named()}
    assert {name: group["name"] for name, _, group in optimizer.named()} == fresh
    assert {name: group["lr"] for name, _, group in optimizer.named()}["transformer.h.0.mlp.c_fc.weight"] == 0.01
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    scheduler.step()
    assert set(optimizer.why) == set(fresh)
    with pytest.raises(ValueError, match="use add_param_group"):
        Muon(nn.Linear(3, 4, bias=False).parameters()).add_unfrozen(model)


def test_split_by_option() -> None:
    model = MODELS["vit"][0]()
    made = {r.name: r for r in routes(model, split={"*.fc1.weight": (16, 48)})}
    assert made["blocks.0.fc1.weight"].view == Split((16, 48))
    assert made["blocks.0.qkv.weight"].view == Split(3), "what is not named stays as it is recognised"
    assert {r.name: r for r in routes(model, split={"*.qkv.weight": 1})}["blocks.0.qkv.weight"].view == Whole()


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
    optimizer = LMOOptimizer([{"params": [p], "view": Flatten()}], 1.0, 0.0, ball=EXACT, scale="original")
    p.grad = g
    optimizer.step()
    matrix = p.detach().flatten(1)
    torch.testing.assert_close(torch.linalg.matrix_norm(matrix, 2), torch.tensor((64 / 18) ** 0.5))


def test_blocks_of_a_fused_weight_are_independent() -> None:
    p = nn.Parameter(torch.zeros(12, 4))
    g = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))
    g[4:8] *= 1e6
    optimizer = LMOOptimizer([{"params": [p], "view": Split(3)}], 1.0, 0.0, ball=EXACT)
    p.grad = g
    optimizer.step()
    for part in p.detach().split(4):
        torch.testing.assert_close(part.mT @ part, torch.eye(4), atol=1e-5, rtol=0)


def test_experts_are_a_batch() -> None:
    """The expert axis is never a matrix axis."""
    p = nn.Parameter(torch.zeros(3, 4, 6))
    p.grad = torch.randn(3, 4, 6, generator=torch.Generator().manual_seed(0))
    LMOOptimizer([{"params": [p], "view": "whole"}], 1.0, 0.0, ball=EXACT, length="steepest").step()
    for w, g in zip(p.detach(), p.grad, strict=True):
        u, s, vh = torch.linalg.svd(g, full_matrices=False)
        torch.testing.assert_close(w, -s.sum() * u @ vh, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("view", [Whole(), Flatten(), Split(3), Split((5, 7))])
def test_views_are_values_with_text(view: object) -> None:
    assert parse(str(view)) == view


def test_a_split_that_does_not_fit() -> None:
    with pytest.raises(ValueError, match="does not divide the 8 rows"):
        LMOOptimizer([{"params": [nn.Parameter(torch.zeros(8, 4))], "view": "split:3"}], 0.1, 0.9, ball="spectral")


@pytest.mark.parametrize("name", MODELS)
def test_explain(name: str) -> None:
    model = MODELS[name][0]()
    optimizer = Muon.for_model(model, 0.02)
    explanation = explain(optimizer)
    assert [line.parameter for line in explanation.lines] == [r.name for r in routes(model)]
    assert sum(line.cost for line in explanation.lines) == pytest.approx(1.0)
    text = str(explanation)
    assert all(row.parameter in text for row in explanation.rows)
    for line in explanation.lines:
        assert line.why
        if line.algorithm == "spectral":
            assert float(line.bound.partition("delta at most ")[2].split()[0]) <= 0.065
            assert line.bound in text
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
    asked = explain(Muon.for_model(flat, 0.02, rules=[("flat", "adamw")]))
    assert [line.role for line in asked.lines] == [""]
    assert not any("FSDP1" in w for w in asked.warnings)


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
