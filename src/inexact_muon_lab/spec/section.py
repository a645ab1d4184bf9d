"""Tables of a spec file: what they have in common, and the kinds of numbers in them."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

Count = Annotated[int, Meta(ge=1)]
Number = Annotated[int, Meta(ge=0)]
Side = Annotated[int, Meta(ge=2)]
Positive = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, le=1)]
Decay = Annotated[float, Meta(ge=0, lt=1)]


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table of a spec file: frozen, without unknown fields."""


class Named(Section, frozen=True, tag_field="name"):
    """One of several kinds of a table, selected by `name`."""
