"""With heads=True each matrix is one head's query, key or value, as the module computes it; otherwise nothing changes.

What attention gets is seen at `scaled_dot_product_attention`, a tensor (batch, heads, time, size) each.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

from attention_models import (
    ByPattern,
    Fused,
    Model,
    Multihead,
    Nameless,
    OneHead,
    OtherNumber,
    Rotated,
    Sizes,
    Strided,
    without_source,
)
from inexact_muon import Muon, explain
from inexact_muon.optim import routes
from inexact_muon.views import Split, Stacked, Transposed, Whole
from real_models import MODELS
from stubs import stubbed

TOKENS = {"input_ids": torch.arange(16).reshape(2, 8) % 90 + 3}
LLAMA_LIKE = {
    r"layers\.0\.self_attn\.q_proj": ({"q": 4}, "o_proj"),
    r"layers\.0\.self_attn\.k_proj": ({"k": 2}, ""),
    r"layers\.0\.self_attn\.v_proj": ({"v": 2}, ""),
}
GEMMA = {"head_dim": 16, "query_pre_attn_scalar": 16, "num_key_value_heads": 2, "layer_types": ["full_attention"] * 2}
OTHERS = {"gemma 3": ("Gemma3ForCausalLM", "Gemma3TextConfig", {**MODELS["llama"][2], **GEMMA})}
DENSE = {**MODELS["deepseek 3"][2], "first_k_dense_replace": 2}  # torch's grouped products have no float64
for name, options in {"deepseek 3": DENSE, "deepseek 3 unequal": {**DENSE, "v_head_dim": 10}}.items():
    OTHERS[name] = (*MODELS["deepseek 3"][:2], options)

BERT = r"layer\.0\.attention\.self\."
LATENT = {r"layers\.0.*q_b_proj": ({"q": 4}, "o_proj"), r"layers\.0.*kv_b_proj": ({"k": 4, "v": 4}, "")}
TRANSFORMERS: dict[str, dict[str, tuple[dict[str, int], str]]] = {
    "llama": LLAMA_LIKE,
    "qwen 3": LLAMA_LIKE,
    "gemma 3": LLAMA_LIKE,
    "gpt2": {r"h\.0\.attn\.c_attn": ({"q": 4, "k": 4, "v": 4}, "c_proj")},
    "gpt-neox": {r"layers\.0.*query_key_value": ({"q": 4, "k": 4, "v": 4}, "dense")},
    "falcon new": {r"h\.0.*query_key_value": ({"q": 4, "k": 2, "v": 2}, "dense")},
    "falcon multi-query": {r"h\.0.*query_key_value": ({"q": 4, "k": 1, "v": 1}, "dense")},
    "falcon old": {r"h\.0.*query_key_value": ({"q": 4, "k": 4, "v": 4}, "dense")},
    "bert bare": {BERT + "query": ({"q": 4}, ""), BERT + "key": ({"k": 4}, ""), BERT + "value": ({"v": 4}, "")},
    "deepseek 3": LATENT,
    "deepseek 3 unequal": LATENT,
    "phi 3": {r"layers\.0.*qkv_proj": ({"q": 4, "k": 2, "v": 2}, "o_proj")},
}
"""Model -> pattern of a weight -> (heads of q, k, v in it; the name of the output projection beside it)."""


class Seen:
    """Inputs and output of the first attention in a forward pass."""

    def __init__(self, model: nn.Module, inputs: dict[str, Tensor]) -> None:
        calls: list[tuple[Any, ...]] = []
        attention = nn.functional.scaled_dot_product_attention

        def recorded(q: Tensor, k: Tensor, v: Tensor, *args: Any, **options: Any) -> Tensor:
            out = attention(q, k, v, *args, **options)
            calls.append((q, k, v, out))
            return out

        patched = mock.patch("torch.nn.functional.scaled_dot_product_attention", recorded)
        with torch.no_grad(), patched:
            model(**inputs)
        self.parts = {name: x.detach().clone() for name, x in zip("qkvo", calls[0], strict=True)}


def heads_that_differ(a: Seen, b: Seen) -> set[tuple[str, int]]:
    """(part, head) of each input of attention that is not the same."""
    return {
        (part, head)
        for part in "qkv"
        for head in range(a.parts[part].shape[1])
        if not torch.equal(a.parts[part][:, head], b.parts[part][:, head])
    }


def singles(view: Any, x: Tensor) -> list[tuple[int, int]]:
    """(stack, place in the stack) of each matrix of a view."""
    return [(i, j) for i, stack in enumerate(view.cut(x)) for j in range(stack.shape[0] if stack.ndim == 3 else 1)]


def changed(view: Any, x: Tensor, keep: Callable[[int, int], bool]) -> Tensor:
    """The weight with the matrices at zero that are not kept."""
    stacks = [stack.clone().reshape(-1, *stack.shape[-2:]) for stack in view.cut(x)]
    for i, stack in enumerate(stacks):
        for j in range(len(stack)):
            if not keep(i, j):
                stack[j].zero_()
    shapes = [stack.shape for stack in view.cut(x)]
    return view.join([s.reshape(shape) for s, shape in zip(stacks, shapes, strict=True)], x.shape)  # type: ignore[no-any-return]


def check_rows(model: nn.Module, name: str, counts: dict[str, int], inputs: dict[str, Tensor]) -> None:
    """Each matrix at zero changes one part's heads alone; alone it computes these heads as before."""
    route = {r.name: r for r in routes(model, heads=True)}[name]
    assert route.sure
    weight = model.get_parameter(name)
    x = weight.detach().clone()
    before, owned = Seen(model, inputs), dict[tuple[str, int], int]()
    matrices = singles(route.view, x)
    assert len(matrices) == sum(counts.values())
    found = dict.fromkeys(counts, 0)
    for k, (i, j) in enumerate(matrices):
        with torch.no_grad():
            weight.copy_(changed(route.view, x, lambda a, b, at=(i, j): (a, b) != at))  # type: ignore[misc]
        differing = heads_that_differ(before, Seen(model, inputs))
        (part,) = {part for part, _ in differing}
        found[part] += 1
        assert not differing & set(owned), "a head in two matrices"
        owned.update(dict.fromkeys(differing, k))
        with torch.no_grad():
            weight.copy_(changed(route.view, x, lambda a, b, at=(i, j): (a, b) == at))  # type: ignore[misc]
        alone = Seen(model, inputs)
        for part, head in differing:
            torch.testing.assert_close(alone.parts[part][:, head], before.parts[part][:, head])
    with torch.no_grad():
        weight.copy_(x)
    assert found == counts
    assert set(owned) == {(part, h) for part in counts for h in range(before.parts[part].shape[1])}, "a head in none"


def check_columns(model: nn.Module, name: str, inputs: dict[str, Tensor]) -> None:
    """The output projection is the sum over heads of what attention gave for it times its matrix."""
    route = {r.name: r for r in routes(model, heads="all")}[name]
    assert isinstance(route.view, Stacked) or route.view == Transposed(Stacked(4, transposed=True))
    given: list[Tensor] = []
    layer = model.get_submodule(name.rpartition(".")[0])
    hook = layer.register_forward_hook(lambda _, args, out: given.append(out))
    attention = Seen(model, inputs).parts["o"]
    hook.remove()
    (matrices,) = route.view.cut(model.get_parameter(name).detach())
    by_heads = torch.einsum("bhtd,hod->bto", attention, matrices)
    bias = getattr(layer, "bias", None)
    torch.testing.assert_close(given[0].detach() - (0 if bias is None else bias.detach()), by_heads)


def spread(model: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim > 1:
                p.normal_(std=0.3)
    return model.double().eval()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_heads_of_transformers(name: str) -> None:
    library = pytest.importorskip("transformers")
    kind, config, options = OTHERS[name] if name in OTHERS else MODELS[name][:3]
    model = spread(getattr(library, kind)(getattr(library, config)(**options, attn_implementation="sdpa")))
    names = [n for n, _ in model.named_parameters()]
    for pattern, (counts, output) in TRANSFORMERS[name].items():
        (weight,) = [n for n in names if re.search(pattern + r"\.weight$", n)]
        check_rows(model, weight, counts, TOKENS)
        if output:
            check_columns(model, weight.rpartition(".")[0].rpartition(".")[0] + f".{output}.weight", TOKENS)


@pytest.mark.slow
def test_heads_of_timm() -> None:
    with stubbed("torchvision", "PIL"):
        create = pytest.importorskip("timm").create_model
        model = spread(create("vit_tiny_patch16_224", num_classes=5, depth=1, img_size=32))
    images = {"x": torch.randn(1, 3, 32, 32, dtype=torch.float64)}
    check_rows(model, "blocks.0.attn.qkv.weight", {"q": 3, "k": 3, "v": 3}, images)


FUSED = {"q": 4, "k": 4, "v": 4}
WRITTEN: dict[str, tuple[Callable[[], nn.Module], dict[str, dict[str, int]], str]] = {
    "fused": (Fused, {"c_attn.weight": FUSED}, "c_proj"),
    "by pattern": (ByPattern, {"to_qkv.weight": FUSED}, "to_out.0"),
    "rotated": (Rotated, {"wq.weight": {"q": 4}, "wk.weight": {"k": 2}, "wv.weight": {"v": 2}}, "wo"),
    "nameless": (Nameless, {"a.weight": {"q": 4}, "b.weight": {"k": 4}, "c.weight": {"v": 4}}, "d"),
    "sizes": (Sizes, {"q_proj.weight": {"q": 4}, "kv_proj.weight": {"k": 4, "v": 4}}, "o_proj"),
    "multihead": (Multihead, {"attention.in_proj_weight": FUSED}, "attention.out_proj"),
    "multihead, other widths": (
        lambda: Multihead(kdim=64, vdim=64),
        {"attention.q_proj_weight": {"q": 4}, "attention.k_proj_weight": {"k": 4}, "attention.v_proj_weight": {"v": 4}},
        "",
    ),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_heads_of_attention_written_in_several_ways(name: str) -> None:
    inner, weights, output = WRITTEN[name]
    model = spread(Model(inner()))
    tokens = {"input_ids": TOKENS["input_ids"] % 50}
    for weight, counts in weights.items():
        check_rows(model, f"blocks.0.{weight}", counts, tokens)
    if output and not output.startswith("attention"):
        check_columns(model, f"blocks.0.{output}.weight", tokens)


@pytest.mark.parametrize("kind", [Strided, OtherNumber, without_source()], ids=["strided", "other number", "no source"])
def test_unknown_heads_are_left_as_they_are_with_one_warning(kind: type[nn.Module]) -> None:
    model = Model(kind())
    with pytest.warns(UserWarning, match=r"the heads of blocks\.0\.q_proj\.weight") as caught:
        optimizer = Muon.for_model(model, lr=0.1, heads=True)
    assert len(caught) == 1
    plain = {route.name: route.view for route in routes(model)}
    for route in routes(model, heads=True):
        assert route.view == plain[route.name]
        assert route.sure != (route.name.split(".")[-2] in ("q_proj", "k_proj", "v_proj"))
    why = {line.parameter: line.why for line in explain(optimizer).lines}
    assert "not by head" in why["blocks.0.q_proj.weight"]


def test_one_head_is_no_doubt() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Muon.for_model(Model(OneHead()), lr=0.1, heads=True)


def test_split_and_rules_override_heads() -> None:
    model = Model(Fused())
    made = {r.name: r for r in routes(model, split={"*c_attn.weight": 3}, heads=True)}
    assert made["blocks.0.c_attn.weight"].view == Split(3)
    made = {r.name: r for r in routes(model, [("*c_attn.weight", "adamw")], heads=True)}
    assert made["blocks.0.c_attn.weight"].algorithm == "adamw"
    assert made["blocks.0.c_attn.weight"].view == Whole()


def test_the_answer_to_the_warning_is_taken_without_one() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Muon.for_model(Model(OtherNumber()), lr=0.1, heads=True, split={"blocks.*.[qkv]_proj.weight": 8})


def test_heads_are_shown_and_are_off_by_default() -> None:
    shown = explain(Muon.for_model(Model(Fused()), lr=0.1, heads=True))
    assert (
        "query, key, value: 4 + 4 + 4 heads of 8 x 32"
        in {line.parameter: line.why for line in shown.lines}["blocks.0.c_attn.weight"]
    )
    assert {r.name: r.view for r in routes(Model(Fused()))}["blocks.0.c_attn.weight"] == Split(3)
    with pytest.raises(ValueError, match='True, False or "all"'):
        Muon.for_model(Model(Fused()), lr=0.1, heads="some")  # type: ignore[arg-type]


def test_a_step_by_heads_is_the_step_of_each_head() -> None:
    """The update of a fused weight is that of its heads as parameters of their own."""
    torch.manual_seed(0)
    model = Model(Fused()).double()
    weight = model.get_parameter("blocks.0.c_attn.weight")
    parts = [nn.Parameter(part.clone()) for part in weight.detach().split(8)]
    single = Muon(parts, lr=0.1, weight_decay=0.1, polar="exact-svd")
    optimizer = Muon.for_model(model, lr=0.1, heads=True, polar="exact-svd")
    for _ in range(3):
        for p in model.parameters():
            p.grad = torch.randn_like(p)
        assert weight.grad is not None
        for part, grad in zip(parts, weight.grad.split(8), strict=True):
            part.grad = grad.clone()
        optimizer.step()
        single.step()
    torch.testing.assert_close(weight.detach(), torch.cat([part.detach() for part in parts]), rtol=1e-12, atol=1e-12)


class Odd(nn.Module):
    """Functions called like torch's that take other arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(32, 32) for _ in range(4))

    def forward(self, x: Any) -> Any:
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        q = q.permute([[0, 1], 2]).view(0, 0).view("b", 4.0).chunk(0)
        k = k.split([32, None], dim="last").reshape([[4], 8]).transpose(9, 12)
        v = v.flatten("all").unflatten(-1, 4).select(0, 99)[99, 100:0, [3, 1], None, ...]
        return self.o_proj(q @ k @ v)


def test_odd_arguments_are_not_followed() -> None:
    made = routes(Model(Odd()), heads=True)
    assert {route.view for route in made} == {Whole()}
