"""Names and validation of parameter group options."""

from __future__ import annotations

import difflib
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from math import inf
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from inexact_muon._text import nearest
from inexact_muon.lmo import Ball
from inexact_muon.optim.decay import CAUTIOUS, DECAYS, INDEPENDENT, PLAIN_STAGES
from inexact_muon.optim.group import Group
from inexact_muon.optim.lengths import FIXED, SCALES, unknown_scale
from inexact_muon.polar._base import DTYPES
from inexact_muon.views import Flatten, Misfit, View

RANGES: tuple[tuple[str, str, Callable[[float], bool], str], ...] = (
    *((key, key, lambda x: 0.0 <= x < inf, "be finite and not negative") for key in ("lr", "weight_decay", "radius")),
    ("momentum", "momentum", lambda x: 0.0 <= x < 1.0, "lie in [0, 1)"),
    ("beta2", "the second of betas", lambda x: 0.0 <= x < 1.0, "lie in [0, 1)"),
    ("eps", "eps of AdamW", lambda x: 0.0 < x < inf, "be positive and finite"),
    ("keep", "keep", lambda x: 0.0 < x <= 1.0, "lie in (0, 1]"),
)
"""(option, its name in an error message, condition, the same in words)"""

WORDS = {
    "algorithm": ("lmo", "adamw"),
    "momentum_init": ("first-gradient", "zero"),
    "decay": DECAYS,
    "fixed_norm": (False, True),
}
"""Option -> its values."""

ALGORITHM = (
    *("algorithm", "ball", "length", "view", "radius", "scale", "constrained", "momentum_init"),
    *("nesterov", "maximize", "keep", "before", "after", "decay", "fixed_norm"),
)
"""Group options that define the algorithm; loading a checkpoint never changes them."""

BUFFERS = {"lmo": ("momentum_buffer",), "adamw": ("exp_avg", "exp_avg_sq")}
"""Algorithm -> state tensors of a parameter."""

SCHEDULED = ("lr", "momentum", "beta2", "eps", "weight_decay", "decay_lr", "turn")
"""Group options that training may change; loading a checkpoint restores them."""

REQUIRED = frozenset((*ALGORITHM, *SCHEDULED))
"""Options that every group has."""

SCHEDULERS = ("initial_lr", "initial_momentum", "max_lr", "min_lr", "base_momentum", "max_momentum", "swa_lr")
"""Entries that torch's schedulers put into a group; loading a checkpoint replaces them by those of the file."""

MARKS = {"use_muon", "use_fallback", "lr_scale"}
"""Group options of other packages: the algorithm, and timm's factor, which its schedulers multiply."""

SLIPS = {"learningrate": "lr", "epsilon": "eps", "wd": "weight_decay", "mu": "momentum", "beta": "betas"}
"""Names of other packages for options of a group, without underscores."""

WHOLE = {
    **dict.fromkeys(("polar", "ns_steps", "ns_coefficients"), "a group has ball='spectral(polar=...)'"),
    "adjust_lr_fn": "a group has scale",
    **dict.fromkeys(("state_dtype", "sample_every", "sample_share", "on_nonfinite"), "give it to the constructor"),
    **dict.fromkeys(("memory_limit", "strategy", "wire", "process_group"), "give it to the constructor"),
}
"""Arguments of the optimizer that apply to all groups, and what a group has instead."""

MOST_STEPS = 100
"""torch.optim.Muon rejects this many."""

KERNEL = 64
"""Longest 1-D kernel; a longer last side of a 3-D parameter may also be that of a matrix."""

BETAS = (0.9, 0.95)
GROUP_ONLY = {"algorithm": "lmo", "beta2": BETAS[1], "eps": 1e-8, "keep": 1.0, "decay_lr": 1.0}
"""Options that can only be set per parameter group, with their defaults."""


def shown(value: Any) -> str:
    """A value of a file for an error message: short, on one line."""
    text = repr(value) if not isinstance(value, str) else value
    return "".join(c if c.isprintable() else "?" for c in text[:200])


def warn(text: str) -> None:
    """Warn at the line of the caller of this package, whether or not torch's own code is between."""
    level, frame = 1, sys._getframe()
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in ("inexact_muon", "torch"):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, stacklevel=level)


def check_options(
    group: Mapping[str, Any], needs_dual: bool = False, own_momenta: bool = False, read_numbers: bool = True
) -> None:
    """Validate the options of a complete group, each by itself and with the others.

    Args:
        needs_dual: of the group's length.
        own_momenta: whether the optimizer is EF21's.
        read_numbers: if False, of numbers only the types, without waiting for an accelerator.
    """
    if isinstance(group["lr"], Tensor) and group["lr"].numel() != 1:
        raise ValueError(f"lr must have one element, got shape {tuple(group['lr'].shape)}")
    for key, name, within, words in RANGES:
        if not isinstance(group[key], Real | Tensor) or (read_numbers and not within(float(group[key]))):
            raise ValueError(f"{name} must {words}, got {group[key]!r}")
    for key, known in WORDS.items():
        if group[key] not in known:
            raise ValueError(f"{key} must be {' or '.join(map(str, known))}, got {group[key]!r}")
    if group["scale"] not in SCALES:
        raise ValueError(unknown_scale(group["scale"]))
    if not read_numbers:
        return
    if group["fixed_norm"] and group["weight_decay"]:
        raise ValueError("fixed_norm=True keeps the norm that weight_decay would change: set weight_decay=0")
    if not 0.0 < group["decay_lr"] < inf:
        raise ValueError(f"decay={group['decay']!r} is relative to the first lr, which must be positive and finite")
    if group["constrained"] and group["weight_decay"]:
        raise ValueError("constrained=True already implies a weight decay of 1: leave out weight_decay")
    if group["constrained"] and group["length"] != str(FIXED):
        raise ValueError("constrained=True implies steps of lr * radius: leave out length")
    if group["constrained"] and group["scale"] != "none":
        raise ValueError(
            "constrained=True needs a ball of fixed radius: set the shape factor by the ball's scale, not scale="
        )
    stages = [key for key, plain in PLAIN_STAGES.items() if group[key] != plain and key != "decay"]
    stages += ["decay"] * (group["decay"] in CAUTIOUS)
    if group["algorithm"] == "adamw" and (stages or group["decay"] in INDEPENDENT):
        raise ValueError(f"AdamW has no oracle: leave out {(stages or ['decay'])[0]} in the group {group['name']!r}")
    if own_momenta and stages:
        raise ValueError(f"EF21Muon has no stages around its oracle: leave out {stages[0]}")
    if needs_dual and stages not in ([], ["decay"]):
        raise ValueError(f"length={group['length']!r} is made of the oracle's answer as it is: leave out {stages[0]}")
    if group["constrained"] and stages:
        raise ValueError(f"constrained=True takes steps to points of a ball: leave out {stages[0]}")


def check_betas(betas: Any) -> tuple[float, float]:
    """Validate betas."""
    try:
        first, second = (float(beta) for beta in betas)
    except (TypeError, ValueError):
        raise ValueError(f"betas must be two numbers in [0, 1), got {betas!r}") from None
    if not (0.0 <= first < 1.0 and 0.0 <= second < 1.0):
        raise ValueError(f"betas must lie in [0, 1), got {betas!r}")
    return first, second


def named_options(group: dict[str, Any], others: Sequence[Group]) -> dict[str, Any]:
    """A copy of a group with this library's names: `algorithm`, `momentum` and `beta2`, and a `name` of its own.

    The algorithm may be named as in KellerJordan's (`use_muon`) and timm's (`use_fallback`) groups; AdamW groups
    default to `BETAS`. Loggers tell groups apart by `name`: as given or its algorithm, numbered if another has it.
    """
    group = dict(group)
    if "algorithm" not in group and {"use_muon", "use_fallback"} & set(group):
        muon = bool(group.get("use_muon", True)) and not group.get("use_fallback", False)
        group["algorithm"] = "lmo" if muon else "adamw"
    betas = check_betas(group.pop("betas")) if "betas" in group else None
    if betas is not None and group.get("momentum", betas[0]) != betas[0]:
        raise ValueError(f"a group has momentum {group['momentum']} and betas {betas}: give one of them")
    if betas is not None or group.get("algorithm") == "adamw":
        first, second = betas or BETAS
        group.setdefault("momentum", first)
        group.setdefault("beta2", second)
    taken = {other["name"] for other in others}
    base = str(group.get("name", group.get("algorithm", "lmo")))
    names = (base, *(f"{base} {i}" for i in range(2, len(taken) + 3)))
    return {**group, "name": next(name for name in names if name not in taken)}


def check_settings(on_nonfinite: str, dtype: Any, every: Any, share: float) -> None:
    """Validate arguments of the optimizer that no group has: on_nonfinite, state_dtype, sample_every, sample_share."""
    if on_nonfinite not in ("skip", "raise"):
        raise ValueError(f"on_nonfinite must be skip or raise, got {on_nonfinite!r}")
    if dtype is not None and dtype not in DTYPES.values():
        known = ", ".join(f"torch.{name}" for name in DTYPES)
        raise ValueError(f"state_dtype must be None or one of {known}, got {dtype!r}")
    if isinstance(every, bool) or not isinstance(every, int) or every < 0:
        raise ValueError(f"sample_every must be an integer of at least 0, got {every!r}")
    if not share > 0.0:
        raise ValueError(f"sample_share must be positive, got {share!r}")


def default_view(params: Iterable[Tensor], ball: Ball) -> View | None:
    """Flattened kernels, for a group without a view that holds more than matrices; None for other groups.

    A matrix ball would otherwise take every k x k kernel for a matrix. A parameter of three dimensions is a kernel too,
    as for a model without experts, if its last side may be a kernel's.
    """
    several = [tuple(p.shape) for p in params if isinstance(p, Tensor) and p.ndim > 2]
    if not several:
        return None
    with suppress(ValueError):
        ball.check(torch.empty(2, device="meta"))
        return None  # it takes vectors
    for shape in several:
        if len(shape) == 3 and shape[-1] > KERNEL:
            raise ValueError(
                f"a parameter of shape {shape} may be a stack of matrices or a kernel: set view='whole' or "
                "view='flatten' in its group, or use for_model"
            )
    return Flatten()


def check_names(group: Mapping[str, Any], known: Iterable[str]) -> None:
    """Options of a group that the optimizer does not use are kept, as in torch; those that look like errors are named.

    Raises:
        ValueError: an argument of the optimizer that cannot differ among groups.
    """
    known = {*known, "betas", "params", "param_names", "name", "initial_lr", "initial_momentum", *MARKS}
    for name in {key for key in group if isinstance(key, str)} - known:
        if name in WHOLE:
            raise ValueError(f"{name!r} is an option of the optimizer, not of a parameter group: {WHOLE[name]}")
        lower = name.lower()
        near = difflib.get_close_matches(SLIPS.get(lower.replace("_", ""), lower), known, n=1, cutoff=0.8)
        if near:
            warn(f"parameter group has the option {name!r}, which is not used: is it {near[0]!r}?")


ADAMW = ("lr", "betas", "weight_decay", "eps")
"""What `adamw` of for_model may have; only rules and groups have more."""


def check_adamw(adamw: object) -> None:
    """Validate the type and the names of `adamw`; values are validated with their group."""
    if adamw is None:
        return
    if not isinstance(adamw, Mapping):
        raise TypeError(f'adamw must be a dict of options, such as adamw={{"lr": 0.003}}, got {adamw!r}')
    for name in (key for key in adamw if key not in ADAMW):
        lower = str(name).lower().replace("_", "")
        raise TypeError(f"adamw has no option {name!r}: {nearest(SLIPS.get(lower, lower), ADAMW)}")


def check_parameter(p: Tensor, group: Group, ball: Ball, view: View) -> None:
    """Validate that a parameter can be in this group."""
    if not isinstance(p, Tensor):
        raise TypeError(f"a parameter must be a torch.Tensor, got {type(p).__name__}")
    if p.is_complex():
        raise TypeError(f"complex parameters are not supported, got one of shape {tuple(p.shape)}")
    if group["algorithm"] == "adamw":
        return
    try:
        for shape in view.shapes(p.shape):
            ball.check(p.new_empty(shape, device="meta"))
    except Misfit:
        raise
    except (ValueError, IndexError):
        pairs = (entry for entry in group["params"] if isinstance(entry, tuple))
        name = next((f"{name} of" for name, other in pairs if other is p), "a parameter of")
        raise ValueError(
            f"{ball.name} needs a matrix, got {name} shape {tuple(p.shape)}: Muon.for_model(model, lr) gives such "
            "parameters AdamW, as does a group of their own with algorithm='adamw'"
        ) from None


def check_ns_steps(steps: Any, name: str = "ns_steps") -> int:
    """The number of Newton-Schulz steps, between 1 and 99 as in torch.optim.Muon.

    Args:
        name: of the number in an error message.
    """
    if not isinstance(steps, int) or not 1 <= steps < MOST_STEPS:
        raise ValueError(f"{name} must lie between 1 and {MOST_STEPS - 1}, got {shown(steps)}")
    return steps
