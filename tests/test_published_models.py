"""Routes of published models are those of the committed tables (tests/data/routes), which the code wrote.

They notice changes. That a row is right is known as far as it was read: for diffusers its outputs and doubts, and for
some models the last lines of the forward pass; for torch_geometric those of each convolution. Rows of timm and
transformers were read by the names of their outputs alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec

import pytest
from torch import nn

from published_models import TABLES, built, published, row
from tiers import kept

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
ROWS = {path.stem: json.loads(path.read_text()) for path in sorted(TABLES.glob("*.json"))}
CASES = [(library, name) for library, rows in ROWS.items() for name in rows]
SHORT = [case for number, case in enumerate(CASES) if case[0] != "diffusers" or number % 3 == 0]
"""Many of diffusers' models are transformers of one kind: two thirds are left to `make test-long`."""


@cache
def models(library: str) -> dict[str, Callable[[], nn.Module]]:
    return published(library)


@pytest.mark.parametrize("case", kept(CASES, SHORT), ids="-".join)
def test_routes_are_those_of_the_table(case: tuple[str, str]) -> None:
    library, name = case
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed: pip install -c constraints.txt {library}")
    build = models(library).get(name)
    if build is None:
        pytest.skip(f"this version of {library} has no {name}")
    model = built(build)
    assert model is not None
    assert row(model) == ROWS[library][name]
