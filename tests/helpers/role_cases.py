"""Small models whose parameters are easily taken for something else, and what they should get."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn.utils import parametrizations

from routing_table import Expected

SQUARE, UP, DOWN, THIRDS = "whole() 16x16 @1", "whole() 64x16 @2", "whole() 16x64 @1", "split(rows=3) 3*16x16 @1"
BIAS = {r".*bias(_\w+)?": "adamw"}


class Named(nn.Module):
    """A module with these attributes; it is never run."""

    def __init__(self, **parts: object) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)


def linear(out: int, into: int) -> nn.Linear:
    return nn.Linear(into, out)


def block(width: int = 16) -> Named:
    """nanoGPT's."""
    attn = Named(c_attn=linear(3 * width, width), c_proj=linear(width, width))
    mlp = Named(c_fc=linear(4 * width, width), c_proj=linear(width, 4 * width))
    return Named(ln_1=nn.LayerNorm(width), attn=attn, ln_2=nn.LayerNorm(width), mlp=mlp)


def nano(tied: bool = True, layers: int = 2) -> Named:
    """nanoGPT's layout: 64 words, so that the output is four times as wide as the model, as the hidden layers are."""
    blocks = nn.ModuleList(block() for _ in range(layers))
    parts = {"wte": nn.Embedding(64, 16), "wpe": nn.Embedding(8, 16), "h": blocks, "ln_f": nn.LayerNorm(16)}
    model = Named(transformer=nn.ModuleDict(parts), lm_head=nn.Linear(16, 64, bias=False))
    if tied:
        model.transformer.wte.weight = model.lm_head.weight
    return model


def body() -> nn.Sequential:
    return nn.Sequential(linear(16, 8), nn.Tanh(), linear(16, 16), nn.Tanh())


def frozen(model: nn.Module, *names: str) -> nn.Module:
    for name in names:
        model.get_submodule(name).requires_grad_(False)
    return model


NANO = {
    r".*transformer\.(wte|wpe)\.weight": "adamw",
    r".*ln_\w\.(weight|bias)": "adamw",
    r".*c_\w+\.bias": "adamw",
    r".*c_attn\.weight": THIRDS,
    r".*attn\.c_proj\.weight": SQUARE,
    r".*c_fc\.weight": UP,
    r".*mlp\.c_proj\.weight": DOWN,
}
BODY = {r"body\.0\.weight": "whole() 16x8 @1.41", r"body\.2\.weight": SQUARE, **BIAS}
UNTIED = {r".*lm_head\.weight": "adamw decay"}


def normed() -> nn.Module:
    return Named(
        conv=parametrizations.weight_norm(nn.Conv1d(4, 8, 3)),
        hidden=parametrizations.weight_norm(linear(8, 8)),
        turn=parametrizations.orthogonal(linear(8, 8)),
        bound=parametrizations.spectral_norm(linear(8, 8)),
        head=parametrizations.weight_norm(linear(3, 8)),
    )


def experts(transposed: bool) -> nn.Module:
    up, down = ((4, 8, 48), (4, 24, 8)) if transposed else ((4, 48, 8), (4, 8, 24))
    stacks = Named(gate_up_proj=nn.Parameter(torch.zeros(up)), down_proj=nn.Parameter(torch.zeros(down)))
    moe = Named(router=nn.Linear(8, 4, bias=False), experts=stacks)
    return Named(embed=nn.Embedding(20, 8), layers=nn.ModuleList([moe]), out=nn.Linear(8, 20, bias=False))


def unet() -> nn.Module:
    down = Named(conv=nn.Conv2d(8, 16, 3), time=linear(16, 32))
    up = Named(up=nn.ConvTranspose2d(16, 8, 2, stride=2), conv=nn.Conv2d(16, 8, 3))
    time = nn.Sequential(linear(32, 8), nn.SiLU(), linear(32, 32))
    return Named(
        conv_in=nn.Conv2d(3, 8, 3),
        time=time,
        down=nn.ModuleList([down]),
        up=nn.ModuleList([up]),
        grouped=nn.ConvTranspose2d(8, 8, 2, groups=2),
        conv_out=nn.Conv2d(8, 3, 3),
    )


def loose() -> nn.Module:
    return Named(
        pos_embed=nn.Parameter(torch.zeros(1, 5, 8)),
        relative_position_bias_table=nn.Parameter(torch.zeros(9, 4)),
        A_log=nn.Parameter(torch.zeros(8, 4)),
        gain=nn.Parameter(torch.zeros(8, 1, 1)),
        body=nn.Sequential(linear(64, 8), nn.ReLU(), linear(8, 64)),
        weight=nn.Parameter(torch.zeros(8, 8)),
        bank=nn.Parameter(torch.zeros(3, 4, 5)),
        head=linear(3, 8),
    )


ROLES: dict[str, tuple[Callable[[], nn.Module], Expected]] = {
    "nanoGPT": (nano, {**NANO}),
    "nanoGPT of one layer, untied": (lambda: nano(False, 1), {**NANO, **UNTIED}),
    "frozen head": (lambda: frozen(nano(False), "lm_head"), NANO),
    "wrapped": (lambda: Named(model=Named(_orig_mod=nano(False))), {**NANO, **UNTIED}),
    "policy first": (
        lambda: Named(policy_head=linear(4, 16), value_head=linear(1, 16), body=body()),
        {r"(policy|value)_head\.weight": "adamw decay", **BODY},
    ),
    "outputs without telling names first": (
        lambda: Named(policy=linear(5, 16), value=linear(1, 16), body=body()),
        {r"(policy|value)\.weight": "adamw decay", **BODY},
    ),
    "as many actions as the model is wide": (
        lambda: Named(policy_head=linear(16, 16), value_head=linear(1, 16), body=body()),
        {r"(policy|value)_head\.weight": "adamw decay", **BODY},
    ),
    "no output": (body, {r"0\.weight": "whole() 16x8 @1.41", r"2\.weight": "adamw decay", **BIAS}),
    "an encoder": (
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 64), 2, enable_nested_tensor=False),
        {
            r".*(norm\d\.(weight|bias)|(?<!norm1)(?<!norm2)\.(in_proj_)?bias)": "adamw",
            r".*in_proj_weight": THIRDS,
            r".*out_proj\.weight": SQUARE,
            r".*linear1\.weight": UP,
            r".*linear2\.weight": DOWN,
        },
    ),
    "a list of outputs": (
        lambda: Named(body=body(), heads=nn.ModuleList([linear(3, 16), linear(5, 16)])),
        {r"heads\.\d\.weight": "adamw decay", **BODY},
    ),
    "outputs of two layers": (
        lambda: Named(body=body(), heads=nn.ModuleList(Named(fc1=linear(16, 16), fc2=linear(3, 16)) for _ in range(2))),
        {r"heads\.\d\.fc1\.weight": SQUARE, r"heads\.\d\.fc2\.weight": "adamw decay", **BODY},
    ),
    "an autoencoder": (
        lambda: Named(encoder=nn.Sequential(linear(16, 64)), decoder=nn.Sequential(linear(64, 16))),
        {r"encoder\.0\.weight": DOWN, r"decoder\.0\.weight": "adamw decay", **BIAS},
    ),
    "a critic that joins its inputs": (
        lambda: Named(state=linear(40, 6), hidden=linear(30, 44), q=linear(2, 30)),
        {
            r"state\.weight": "whole() 40x6 @2.58 ?",
            r"hidden\.weight": "whole() 30x44 @1",
            r"q\.weight": "adamw decay",
            **BIAS,
        },
    ),
    "LeNet": (
        lambda: Named(conv1=nn.Conv2d(1, 6, 5), conv2=nn.Conv2d(6, 16, 5), fc1=linear(120, 400), fc2=linear(10, 120)),
        {
            r"conv1\.weight": "flatten() 6x25 @1",
            r"conv2\.weight": "flatten() 16x150 @1",
            r"fc1\.weight": "whole() 120x400 @1",
            r"fc2\.weight": "adamw decay",
            **BIAS,
        },
    ),
    "a U-Net": (
        unet,
        {
            r"conv_in\.weight": "flatten() 8x27 @1",
            r"time\.0\.weight": "whole() 32x8 @2",
            r"time\.2\.weight": "whole() 32x32 @1",
            r"down\.0\.conv\.weight": "flatten() 16x72 @1",
            r"down\.0\.time\.weight": "whole() 16x32 @1",
            r"up\.0\.up\.weight": "flatten(transposed=True) 8x64 @1",
            r"up\.0\.conv\.weight": "flatten() 8x144 @1",
            r"grouped\.weight": "flatten(groups=2, transposed=True) 2x4x16 @1",
            r"conv_out\.weight": "adamw decay",
            **BIAS,
        },
    ),
    "recurrent": (
        lambda: Named(words=nn.Embedding(50, 8), rnn=nn.LSTM(8, 16, 2), cell=nn.GRUCell(16, 16), out=linear(50, 16)),
        {
            r"words\.weight": "adamw",
            r"rnn\.weight_ih_l0": "split(rows=4) 4*16x8 @1.41",
            r"rnn\.weight_(ih_l1|hh_l\d)": "split(rows=4) 4*16x16 @1",
            r"cell\.weight_\w+": "split(rows=3) 3*16x16 @1",
            r"out\.weight": "adamw decay",
            r".*bias\w*": "adamw",
        },
    ),
    "attention of other widths": (
        lambda: Named(attention=nn.MultiheadAttention(16, 2, kdim=8, vdim=12, add_bias_kv=True), head=linear(3, 16)),
        {
            r"attention\.(q_proj_weight|out_proj\.weight)": SQUARE,
            r"attention\.k_proj_weight": "whole() 16x8 @1.41",
            r"attention\.v_proj_weight": "whole() 16x12 @1.15",
            r"attention\.bias_[kv]|.*bias": "adamw",
            r"head\.weight": "adamw decay",
        },
    ),
    "parametrisations": (
        normed,
        {
            r".*original0": "adamw",
            r"conv\..*original1": "flatten() 8x12 @1",
            r"(hidden\..*original1|bound\..*original)": "whole() 8x8 @1",
            r"turn\..*original": "adamw",
            r"head\..*original1": "adamw decay",
            **BIAS,
        },
    ),
    "experts": (
        lambda: experts(False),
        {
            r"embed\.weight": "adamw",
            r".*router\.weight": "whole() 4x8 @1",
            r".*gate_up_proj": "split(rows=2) 2*4x24x8 @1.73",
            r".*down_proj": "whole() 4x8x24 @1",
            r"out\.weight": "adamw decay",
        },
    ),
    "experts stored as (in, out)": (
        lambda: experts(True),
        {
            r"embed\.weight": "adamw",
            r".*router\.weight": "whole() 4x8 @1",
            r".*gate_up_proj": "transposed(inner=split(rows=2)) 2*4x24x8 @1.73",
            r".*down_proj": "transposed(inner=whole()) 4x8x24 @1",
            r"out\.weight": "adamw decay",
        },
    ),
    "not the weight of a layer": (
        loose,
        {
            r"pos_embed|relative_position_bias_table|A_log|gain": "adamw",
            r"body\.0\.weight": "whole() 64x8 @2.83",
            r"body\.2\.weight": "whole() 8x64 @1",
            r"weight": "adamw decay ?",
            r"bank": "adamw ?",
            r"head\.weight": "adamw decay",
            r".*\.bias": "adamw",
        },
    ),
    "fused by name only": (
        lambda: Named(layers=nn.ModuleList([Named(qkv=linear(50, 16), proj=linear(16, 16))]), norm=nn.LayerNorm(16)),
        {r".*qkv\.weight": "whole() 50x16 @1.77 ?", r".*proj\.weight": SQUARE, r"norm\.weight": "adamw", **BIAS},
    ),
}
"""Name -> (constructor, expected)."""
