"""A run is a frozen spec: five sections and a few numbers. Its id is the hash of its canonical text.

Defaults are filled in before hashing, so that spelling out a default does not change the id.
Never imports torch: oracles stay text here and are parsed when a run is prepared.
"""

from __future__ import annotations

import copy
import hashlib
from math import cos, pi
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from inexact_muon_lab.spec.decode import Count, Named, NotNegative, Number, Section, Share, Side, decode, read_toml
from inexact_muon_lab.spec.optimizers import MuonSpec, Optimizer

# problems -------------------------------------------------------------------------------------------------------------

SIZES = {
    "tiny": {"layers": 2, "width": 96, "heads": 3, "context": 128},
    "small": {"layers": 6, "width": 384, "heads": 6, "context": 256},
    "124M": {"layers": 12, "width": 768, "heads": 6, "context": 1024},
}
"""Presets for `size` of nanogpt; each number can be overridden."""


class NanoGPT(Named, frozen=True, tag="nanogpt"):
    """A small GPT: RMSNorm, QK-norm, squared ReLU, untied head. A number of 0 is taken from `size`."""

    size: Literal["tiny", "small", "124M"] = "tiny"
    layers: Number = 0
    width: Number = 0
    heads: Number = 0
    context: Number = 0
    positions: Literal["rotary", "learned"] = "rotary"

    def __post_init__(self) -> None:
        for field, value in SIZES[self.size].items():
            if getattr(self, field) == 0:
                msgspec.structs.force_setattr(self, field, value)
        if self.width % (2 * self.heads):
            raise ValueError(f"width {self.width} must be a multiple of twice the {self.heads} heads")


class Cnn(Named, frozen=True, tag="cnn"):
    """Three blocks of two 3x3 convolutions with batch normalisation and GELU, then a linear head."""

    widths: tuple[Count, Count, Count] = (16, 32, 32)


class Matrix(Named, frozen=True, tag="matrix"):
    """A function of one matrix with known smoothness; the seed determines the function and the noise.

    Each example of a batch is the gradient plus Gaussian noise xi with E||xi||_2^2 = noise^2.
    """

    function: Literal["quadratic", "logistic", "exponential"] = "quadratic"
    rows: Side = 6
    columns: Side = 4
    noise: NotNegative = 1.0
    condition: Annotated[float, Meta(ge=1)] = 10.0
    """Condition number of the quadratic."""

    def __post_init__(self) -> None:
        if self.function != "quadratic" and self.condition != 10.0:
            raise ValueError(f"condition is a field of the quadratic, not of the {self.function} function")


class Custom(Named, frozen=True, tag="custom"):
    """A user-defined problem: `target` is "module:function", called with seed, batch and `arguments`."""

    target: str
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)


Problem = NanoGPT | Cnn | Matrix | Custom
"""Each problem also has a row in `problems.PROBLEMS`."""


# data -----------------------------------------------------------------------------------------------------------------


class Stdlib(Named, frozen=True, tag="stdlib"):
    """Source code of the Python standard library, as bytes. Needs no network."""


class Text(Named, frozen=True, tag="text"):
    """A text file, or every file of a folder, as bytes or as GPT-2 tokens."""

    path: str
    tokens: Literal["bytes", "gpt2"] = "bytes"


class Shards(Named, frozen=True, tag="shards"):
    """Token shards in uint16, such as FineWeb's: `*train*.bin` and `*val*.bin` in a folder."""

    path: str
    download: Number = 0
    """Number of FineWeb training shards (100M tokens each) to fetch into `path` if missing."""


class Digits(Named, frozen=True, tag="digits"):
    """scikit-learn's 1797 handwritten digits of 8 x 8 pixels. Needs no network."""


class Cifar10(Named, frozen=True, tag="cifar10"):
    """CIFAR-10 in its binary version; the folder of `data_batch_1.bin`."""

    path: str
    images: Number = 0
    """Use only the first so many training images; 0 for all."""
    download: bool = False


class Nothing(Named, frozen=True, tag="none"):
    """The problem generates its own data."""


Data = Stdlib | Text | Shards | Digits | Cifar10 | Nothing

READS: dict[type, tuple[type[Named], ...]] = {NanoGPT: (Stdlib, Text, Shards), Cnn: (Digits, Cifar10)}
"""Data sections that a problem accepts, the default first; a problem without a row has its own data."""


# the rest -------------------------------------------------------------------------------------------------------------


class ScheduleSpec(Section, frozen=True):
    """Step size over time: linear warm-up, constant, then a cool-down over the last fraction of the steps."""

    warmup: Number = 0
    cooldown: Share = 0.0
    shape: Literal["linear", "cosine"] = "linear"
    floor: Share = 0.0

    def factor(self, step: int, steps: int) -> float:
        """The factor of every group's lr in a step, counted from 0.

        (step + 1)/warmup during warm-up; in the last `cooldown * steps` steps from 1 to `floor` (reached after the last
        step), linearly or along half a cosine; else 1.
        """
        if step < self.warmup:
            return (step + 1) / self.warmup
        length, remaining = self.cooldown * steps, steps - step
        if remaining >= length:
            return 1.0
        height = remaining / length
        if self.shape == "cosine":
            height = (1.0 - cos(pi * height)) / 2.0
        return self.floor + (1.0 - self.floor) * height


class TelemetrySpec(Section, frozen=True):
    """LMO error per layer at the first, every `every`-th and the last step; 0 for never."""

    every: Number = 0
    exact: bool = True
    """Use a float64 SVD instead of the cheap estimate."""


class RunSpec(Section, frozen=True):
    """Everything that determines a run's results."""

    problem: Problem
    data: Data | None = None
    optimizer: Optimizer = MuonSpec()
    schedule: ScheduleSpec = ScheduleSpec()
    telemetry: TelemetrySpec = TelemetrySpec()
    seed: Number = 0
    steps: Count = 250
    batch: Count = 32
    accumulate: Count = 1
    record_every: Count = 10
    evaluate_every: Number = 0
    validation: Count = 8
    checkpoint_every: Number = 100
    precision: Literal["float32", "bfloat16"] = "float32"
    device: Literal["auto", "cpu", "cuda"] = "auto"

    def __post_init__(self) -> None:
        kinds = READS.get(type(self.problem), (Nothing,))
        if self.data is None:
            msgspec.structs.force_setattr(self, "data", kinds[0]())
        elif not isinstance(self.data, kinds):
            allowed = ", ".join(tag(kind) for kind in kinds)
            problem = tag(type(self.problem))
            raise ValueError(f"data.name: {problem} cannot read {tag(type(self.data))!r}; one of {allowed}")
        if self.batch % self.accumulate:
            raise ValueError(f"accumulate = {self.accumulate} does not divide batch = {self.batch}")

    @property
    def polar(self) -> str | None:
        """The oracle's text; None for an optimizer without one."""
        return getattr(self.optimizer, "polar", None)

    @property
    def id(self) -> str:
        """Twelve hexadecimal digits of the hash of the canonical text."""
        return hashlib.sha256(canonical(self)).hexdigest()[:12]


def canonical(spec: RunSpec) -> bytes:
    """JSON with all fields and sorted keys: equal specs have equal bytes."""
    return msgspec.json.encode(spec, order="sorted")


def from_json(text: bytes | str) -> RunSpec:
    """The inverse of `canonical`."""
    return msgspec.json.decode(text, type=RunSpec)


def load(path: Path, changes: dict[str, Any] | None = None) -> RunSpec:
    """The run described by a TOML file; `changes` maps dotted fields to values that override it."""
    raw = read_toml(path)
    if "base" in raw:
        raise ValueError(f"{path} is a study (it has a base); use `inexact-muon sweep {path}`")
    return decode(overlaid(raw, changes or {}), RunSpec, str(path))


def overlaid(base: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """A copy of nested tables with these dotted fields set, in their order."""
    raw = copy.deepcopy(base)
    for field, value in values.items():
        *outer, last = field.split(".")
        table = raw
        for name in outer:
            table = table.setdefault(name, {})
            if not isinstance(table, dict):
                raise ValueError(f"{field}: {name} is a value, not a table")
        table[last] = copy.deepcopy(value)
    return raw


def tag(kind: type[Named]) -> str:
    """The `name` of a kind of table."""
    return str(kind.__struct_config__.tag)
