"""Which cases of a slow test are left to `make test-long`."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

import pytest


def at_length(short: Iterable[Any], *more: Any) -> list[Any]:
    """Values for parametrize: the short ones as they are, the others marked `long`."""
    return [*short, *(pytest.param(value, marks=pytest.mark.long) for value in more)]


def kept(values: Iterable[Any], short: Container[Any]) -> list[Any]:
    """Values for parametrize: those that are not among the short ones are marked `long`."""
    return [value if value in short else pytest.param(value, marks=pytest.mark.long) for value in values]
