"""Which rows of weights tensors hold, and what functions take them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from inexact_muon.routing.reading.rows import Untracked, WeightRows
from inexact_muon.routing.reading.values import Value, carried, listed
from inexact_muon.routing.words import role


class Tracking:
    """Follows rows of weights.

    Attributes:
        uses: rows of weights, as they are when a function takes them that does more than rearrange them.
    """

    def __init__(self) -> None:
        self.uses: list[WeightRows] = []

    def used(self, values: Iterable[Value], fed: bool = False) -> None:
        """A function, or a layer, takes these values and does more than rearrange them."""
        for value in values:
            if value.rows is not None:
                self.uses.append(replace(value.rows, fed=fed))
            self.used(value.items or (), fed)

    def rearranged(self, value: Value, change: Callable[[WeightRows], WeightRows | list[WeightRows]]) -> Value | None:
        """A tensor, or several, after its rows were rearranged; None if it has none or that is not known."""
        if value.rows is None:
            return None
        try:
            parts = change(value.rows)
        except (Untracked, TypeError, ValueError, ArithmeticError, LookupError):
            self.used([value])  # also where arguments are not what a function of torch of this name takes
            return None
        if isinstance(parts, WeightRows):
            return Value(value.sources, rows=parts)
        return listed(Value(value.sources, rows=part) for part in parts)

    def elementwise(self, values: Sequence[Value]) -> Value:
        """What adding or multiplying gives: the rows stay in their places if one of the values holds some."""
        held = [value.rows for value in values if value.rows is not None]
        if len(held) != 1:
            self.used(values)
        return Value(carried(values).sources, rows=held[0] if len(held) == 1 else None)


def with_role(value: Value, part: str) -> Value:
    """A tensor whose rows are those of the query, key or value unless they have another role."""
    return replace(value, rows=replace(value.rows, role=value.rows.role or part)) if value.rows else value


def named_role(value: Value, name: str) -> Value:
    """A tensor whose rows have the role that the name of its variable tells, if it tells one."""
    part = role(name) if value.rows is not None else ""
    return replace(value, rows=replace(value.rows, role=part)) if value.rows is not None and part else value
