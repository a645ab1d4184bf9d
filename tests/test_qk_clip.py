"""QK-clip: heads above the limit are brought to it on the same batch, the others are left alone, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from attention_models import Fused, Model, Multihead, OneHead, Rotated, Sizes
from inexact_muon import Muon
from inexact_muon.optim import QKClip
from ranks import on_ranks
from real_models import MODELS

TOKENS = torch.arange(32).reshape(4, 8) % 50
CASES = {"fused": Fused, "grouped queries": Rotated, "sizes": Sizes, "nn.MultiheadAttention": Multihead}


def measured(model: nn.Module, clip: QKClip) -> Tensor:
    """The largest logits of each head of the first attention module on the tokens."""
    clip.watch.largest = {}
    model(TOKENS)
    return next(iter(clip.watch.largest.values())).clone()


def rows_of(layer: Any, role: str) -> list[Tensor]:
    """The rows of each head."""
    weight = layer.weight.detach().T if layer.transposed else layer.weight.detach()
    return [weight[block.first : block.first + block.size].clone() for block in layer.heads(role)]


def spread(model: nn.Module, scale: float = 1.0) -> nn.Module:
    torch.manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(std=scale * 0.3)
    return model.double().train()


def check(model: nn.Module) -> tuple[QKClip, Tensor]:
    """Clip at a limit in the middle of the heads' logits, with a step of lr 0."""
    clip = QKClip(model, limit=1.0)
    before = measured(model, clip)
    clip.limit = float(before.sort().values[len(before) // 2 - 1 : len(before) // 2 + 1].mean())
    over = before > clip.limit
    assert 0 < int(over.sum()) < len(over)
    optimizer = Muon.for_model(model, lr=0.0, weight_decay=0.0, adamw={"lr": 0.0})
    optimizer.register_step_post_hook(clip)
    clip.watch.largest = {}
    pair = next(iter(clip.pairs.values()))
    saved = {"query": rows_of(pair.query, "query"), "key": rows_of(pair.key, "key")}
    result = model(TOKENS)
    (result if isinstance(result, Tensor) else result.logits).sum().backward()
    optimizer.step()
    assert clip.clipped >= int(over.sum())
    after = measured(model, clip)
    torch.testing.assert_close(after[over], torch.full_like(after[over], clip.limit), rtol=1e-5, atol=0.0)
    torch.testing.assert_close(after[~over], before[~over], rtol=1e-6, atol=0.0)
    for layer, role in ((pair.query, "query"), (pair.key, "key")):
        for block, part, old in zip(layer.heads(role), rows_of(layer, role), saved[role], strict=True):
            untouched = not over[layer.heads(role).index(block)] if len(layer.heads(role)) == len(over) else True
            assert torch.equal(part, old) == untouched
    return clip, before


@pytest.mark.parametrize("name", CASES)
def test_logits_are_clipped_head_by_head(name: str) -> None:
    clip, _ = check(spread(Model(CASES[name]())))
    clip.remove()


def test_biases_are_scaled_with_their_rows() -> None:
    inner = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0)
    check(spread(Model(inner), 0.5))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt-neox", "deepseek 3", "falcon multi-query", "phi 3", "opt"])
def test_logits_of_transformers_are_clipped(name: str, attention: str) -> None:
    library = pytest.importorskip("transformers")
    kind, config, options = MODELS["opt with projections" if name == "opt" else name][:3]
    extra = {"first_k_dense_replace": 2, "num_key_value_heads": 4} if name == "deepseek 3" else {}
    options = {**options, **extra, "attn_implementation": attention, "num_hidden_layers": 1}
    if name == "gpt2":
        options = {k: v for k, v in options.items() if k != "num_hidden_layers"} | {"n_layer": 1}
    model = spread(getattr(library, kind)(getattr(library, config)(**options)))
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for dropout in ("attention_dropout", "dropout"):
            if isinstance(getattr(module, dropout, None), float):
                setattr(module, dropout, 0.0)
    check(model)


def test_grouped_queries_keep_their_key() -> None:
    model = spread(Model(Rotated()))
    key = model.get_parameter("blocks.0.wk.weight").clone()
    check(model)
    assert torch.equal(model.get_parameter("blocks.0.wk.weight"), key)


def test_latent_attention_scales_the_rotary_query_by_the_whole_factor() -> None:
    library = pytest.importorskip("transformers")
    kind, config, options = MODELS["deepseek 3"][:3]
    built = getattr(library, config)(**{**options, "first_k_dense_replace": 2, "num_hidden_layers": 1})
    model = spread(getattr(library, kind)(built))
    name = "model.layers.0.self_attn"
    q, kv = (model.get_parameter(f"{name}.{part}_b_proj.weight") for part in ("q", "kv"))
    old_q, old_kv = q.detach().clone().view(4, 10, -1), kv.detach().clone().view(4, 12, -1)
    QKClip(model, limit=1.0, logits=lambda: {name: torch.tensor([4.0, 0.5, 1.0, 16.0])})()
    root = torch.tensor([0.5, 1.0, 1.0, 0.25], dtype=torch.float64)[:, None, None]
    torch.testing.assert_close(q.view(4, 10, -1)[:, :6], root * old_q[:, :6])
    torch.testing.assert_close(q.view(4, 10, -1)[:, 6:], root**2 * old_q[:, 6:])
    torch.testing.assert_close(kv.view(4, 12, -1)[:, :6], root * old_kv[:, :6])
    assert torch.equal(kv.view(4, 12, -1)[:, 6:], old_kv[:, 6:]), "values are not scaled"


def test_batches_between_steps_count_together_and_evaluation_does_not() -> None:
    model = spread(Model(Fused()))
    clip = QKClip(model)
    singles = []
    for row in TOKENS:
        clip.watch.largest = {}
        model(row[None])
        singles.append(clip.watch.largest["blocks.0"])
    clip.watch.largest = {}
    for row in TOKENS:
        model(row[None])
    assert torch.equal(clip.watch.largest["blocks.0"], torch.stack(singles).amax(0))
    clip.watch.largest = {}
    model.eval()(TOKENS)
    assert clip.watch.largest == {}


def test_a_causal_mask_hides_what_it_hides() -> None:
    from inexact_muon.optim.attention_logits import CHUNK, _of_product

    torch.manual_seed(0)
    q, k = torch.randn(2, 3, CHUNK + 40, 4), torch.randn(2, 3, CHUNK + 40, 4)
    mask = torch.ones(CHUNK + 40, CHUNK + 40, dtype=torch.bool).tril()
    expected = (q @ k.mT / 2.0).masked_fill(~mask, -torch.inf).amax((0, 2, 3))
    torch.testing.assert_close(_of_product(q, k, k, is_causal=True), expected)
    torch.testing.assert_close(_of_product(q, k, k, mask), expected)
    grouped = _of_product(torch.cat([q, q], 1), k, k, mask, enable_gqa=True)
    by_hand = _of_product(torch.cat([q, q], 1), k.repeat_interleave(2, 1), k, mask)
    assert torch.equal(grouped, by_hand)


def test_an_error_in_the_forward_pass_leaves_nothing_behind() -> None:
    model = spread(Model(Fused()))
    clip = QKClip(model)
    with pytest.raises(RuntimeError):
        model.get_submodule("blocks.0")(torch.zeros(2, 8, 7, dtype=torch.float64))
    softmax: Any = torch.softmax(torch.zeros(2, 4, 8, 8), -1)
    assert softmax.shape == (2, 4, 8, 8)
    assert clip.watch.largest == {}


def test_infinite_logits_scale_nothing() -> None:
    model = spread(Model(Fused()))
    old = model.get_parameter("blocks.0.c_attn.weight").detach().clone()
    QKClip(model, logits=lambda: {"blocks.0": torch.tensor([torch.inf, torch.nan, 1.0, 2.0])})()
    assert torch.equal(model.get_parameter("blocks.0.c_attn.weight"), old)


def test_what_it_cannot_do_is_one_sentence() -> None:
    with pytest.raises(ValueError, match="found no query and key"):
        QKClip(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
    with pytest.raises(ValueError, match="found no query and key"):
        QKClip(Model(OneHead()))
    with pytest.raises(ValueError, match="limit must be positive"):
        QKClip(Model(Fused()), limit=0.0)
    with pytest.raises(KeyError, match=r"has no attention module 'other': it has blocks\.0"):
        QKClip(Model(Fused()), logits=lambda: {"other": torch.ones(4)})()
    with pytest.raises(ValueError, match=r"blocks\.0 has 4 heads, got the logits of 3"):
        QKClip(Model(Fused()), logits=lambda: {"blocks.0": torch.ones(3)})()


def test_normalised_queries_are_refused() -> None:
    library = pytest.importorskip("transformers")
    kind, config, options = MODELS["qwen 3"][:3]
    with pytest.raises(ValueError, match="normalises queries or keys"):
        QKClip(getattr(library, kind)(getattr(library, config)(**options)))


def on_each_rank(rank: int, world: int) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """(c_attn of a sharded model, by hand from the largest logits of both ranks, what was taken)"""
    torch.manual_seed(0)
    model = spread(Model(Fused()))
    plain = spread(Model(Fused()))
    both = torch.tensor([[3.0, 0.5, 1.0, 2.0], [1.0, 8.0, 0.25, 2.0]])
    fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
    clip = QKClip(model, limit=1.0, logits=lambda: {"blocks.0": both[rank]})
    clip()
    root = (1.0 / both.amax(0).clamp(min=1.0)).sqrt().double().repeat_interleave(8)
    with torch.no_grad():
        plain.get_parameter("blocks.0.c_attn.weight")[:64].mul_(torch.cat([root, root])[:, None])
    sharded: Any = model.get_parameter("blocks.0.c_attn.weight")
    return sharded.full_tensor().detach(), plain.get_parameter("blocks.0.c_attn.weight").detach(), clip.largest


@pytest.mark.slow
def test_ranks_clip_pieces_by_the_largest_logit_of_all() -> None:
    for sharded, plain, largest in on_ranks(on_each_rank, 2):
        assert largest["blocks.0"].tolist() == [3.0, 8.0, 1.0, 2.0]
        torch.testing.assert_close(sharded, plain)
