"""Arms of a comparison: what makes an arm, what it may have of its own, what is held equal, and what differs.

[compare]
of = ["optimizer.polar"]                       # fields that make an arm
own = ["optimizer.lr", "optimizer.decay"]      # rates tuned for each arm, on other seeds
held = ["optimizer.adamw_lr", "optimizer.momentum"]

[[compare.arm]]
name = "polar factor"
set.optimizer = { polar = "zolotarev(poles=3)", lr = 0.06, decay = 0.002 }

[[compare.arm]]
name = "s^-0.2"
set.optimizer = { polar = "zolotarev(poles=3, power=-0.2)", lr = 0.04, decay = 0.002 }
against = "polar factor"                       # what it is claimed to beat
controls = ["polar factor, lr of s^-0.2"]      # arms that give the other one what moves with this one
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta

from inexact_muon_lab.spec.decode import NotNegative, Section
from inexact_muon_lab.spec.spec import RunSpec

DECAY = "optimizer.decay"
TIED = "optimizer.weight_decay"
RECORDING = ("seed", "telemetry", "record_every", "evaluate_every", "checkpoint_every", "device")
"""Fields that do not change what is trained."""


class Arm(Section, frozen=True):
    """One arm: its name in words and the fields it sets."""

    name: Annotated[str, Meta(min_length=1)]
    set: dict[str, Any]
    against: str = ""
    controls: tuple[str, ...] = ()

    @property
    def fields(self) -> dict[str, Any]:
        """Dotted field -> value."""
        return dict(flat(self.set))


class Compare(Section, frozen=True):
    """The table [compare] of a study file, written before its runs."""

    arm: Annotated[tuple[Arm, ...], Meta(min_length=2)]
    of: Annotated[tuple[str, ...], Meta(min_length=1)] = ("optimizer.polar",)
    own: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    margin: NotNegative = 0.0
    """The smallest gain that counts, as a share of the loss of the arm that is to be beaten."""

    def __post_init__(self) -> None:
        names = [arm.name for arm in self.arm]
        if len(set(names)) < len(names):
            raise ValueError(f"two arms have one name: {', '.join(names)}")
        for arm in self.arm:
            for other in (*filter(None, (arm.against,)), *arm.controls):
                if other not in names or other == arm.name:
                    raise ValueError(f"{arm.name!r} is compared with {other!r}, which is no other arm: {names}")
            if arm.controls and not arm.against:
                raise ValueError(f"{arm.name!r} has controls, but no arm it is compared with (`against`)")
        for field in self.held:
            if field in (*self.of, *self.own):
                raise ValueError(f"{field} is both held equal and a field of the arms")

    def undeclared(self, one: RunSpec, other: RunSpec) -> list[str]:
        """Fields in which two runs differ although the study declares neither that they make an arm nor are its own."""
        return [field for field in differences(one, other) if field not in (*self.of, *self.own)]

    def arm_of(self, spec: RunSpec) -> Arm | None:
        """The arm that a run belongs to; None for a run of no arm.

        An arm may set what another one sets and more: a run is of the one that says most about it.
        """
        fields = trained(spec)
        fitting = [arm for arm in self.arm if all(fields.get(f) == v for f, v in arm.fields.items())]
        return max(fitting, key=lambda arm: len(arm.fields), default=None)


def flat(table: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted field, value) of nested tables."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def trained(spec: RunSpec) -> dict[str, Any]:
    """Dotted field -> value of everything that changes what is trained.

    Weight decay tied to lr appears as what it does to a matrix in a step, `optimizer.decay` = lr weight_decay: arms
    with equal `weight_decay` and different lr differ in it.
    """
    plain = msgspec.to_builtins(spec)
    fields = dict(flat({name: value for name, value in plain.items() if name not in RECORDING}))
    if TIED in fields and getattr(spec.optimizer, "decay", UNSET) is UNSET:
        fields[DECAY] = fields["optimizer.lr"] * fields[TIED]
    return fields


def differences(one: RunSpec, other: RunSpec) -> dict[str, tuple[Any, Any]]:
    """Dotted field -> its two values, where what is trained differs."""
    first, second = trained(one), trained(other)
    names = dict.fromkeys((*first, *second))
    return {name: (first.get(name), second.get(name)) for name in names if first.get(name) != second.get(name)}
