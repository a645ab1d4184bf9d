"""Small laws of shared work: owners, pieces, Gram matrices, messages; in one process."""

from __future__ import annotations

from collections.abc import Generator
from math import prod

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from cases import POLARS
from inexact_muon import Muon
from inexact_muon.parallel.place import Place, place_of
from inexact_muon.parallel.shares import assign, interleaved
from inexact_muon.parallel.wire import Wire
from inexact_muon.plan.layout import owners
from inexact_muon.plan.models import Weight
from inexact_muon.views import Flatten, Split, Stacked, Transposed, View, Whole, parse
from matrices import matrix


def copies(ranks: int) -> Place:
    return Place((2, 3), tuple((rank,) for rank in range(ranks)), (((0, 2), (0, 3)),))


@given(st.lists(st.integers(2, 30), min_size=1, max_size=12), st.integers(1, 5))
def test_owners_are_the_plans(sides: list[int], ranks: int) -> None:
    found = assign([(copies(ranks), float(n**3)) for n in sides])
    loads = [sum(n**3 for n, owner in zip(sides, found, strict=True) if owner == rank) for rank in range(ranks)]
    weights = [Weight(f"layer{i}", (n, n)) for i, n in enumerate(sides)]
    assert sorted(loads) == sorted(load.flops for load in owners(weights, ranks, lambda w: w.shape[0] ** 3))
    assert max(loads) <= sum(loads) / ranks + max(n**3 for n in sides)


def test_what_other_ranks_do_not_know_does_not_count() -> None:
    pair = Place((2, 3), ((1,), (2,)), (((0, 2), (0, 3)),))
    both = assign([(pair, 100.0), (copies(3), 5.0), (copies(3), 4.0)])
    assert both[1:] == assign([(copies(3), 5.0), (copies(3), 4.0)])


@pytest.mark.parametrize("name", [name for name, method in POLARS.items() if method.from_gram])
@pytest.mark.parametrize("shape", [(7, 20), (12, 12)])
def test_the_gram_matrix_alone_is_enough(name: str, shape: tuple[int, int]) -> None:
    method = POLARS[name]
    m = matrix(*shape, "log-uniform-1e-3")
    q = method.multiplier((m @ m.mT)[None])[0]
    wide = method.orthogonalise_all([m.double()])[0]
    if method.compute_dtype(m.double()) == torch.float64:
        torch.testing.assert_close(q @ m, wide, rtol=0, atol=1e-9)


def test_methods_without_one_say_so() -> None:
    with pytest.raises(NotImplementedError, match="exact-svd needs more than the Gram matrix"):
        POLARS["exact-svd()"].multiplier(torch.eye(3)[None])


CUT: dict[View, tuple[int, ...]] = {
    Whole(): (6, 4),
    Flatten(): (6, 4, 3),
    Flatten(transposed=True): (6, 4, 3),
    Flatten(groups=3): (6, 2, 3),
    Flatten(groups=3, transposed=True): (6, 2, 3),
    Split(3): (6, 4),
    Split((1, 3, 2)): (6, 4),
    Split((1, 2), 2): (6, 4),
    Split(2, 3): (2, 6, 4),
    Split(2): (3, 4, 2),
    Stacked(3): (6, 4),
    Stacked(3, transposed=True): (6, 4),
    Transposed(): (6, 4),
    Transposed(Split((1, 2), 2)): (4, 6),
    Transposed(Split(2)): (3, 5, 4),
}
"""Every view with the shape of a tensor that it cuts."""


@pytest.mark.parametrize(("view", "shape"), CUT.items(), ids=str)
def test_views_are_values_with_text_and_the_shapes_they_say(view: View, shape: tuple[int, ...]) -> None:
    assert parse(str(view)) == view
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    matrices = view.cut(x)
    assert [tuple(m.shape) for m in matrices] == view.shapes(shape)
    assert torch.equal(view.join(matrices, shape), x)
    assert view.join(matrices, shape).is_contiguous()
    assert sorted(torch.cat([m.flatten() for m in matrices]).tolist()) == sorted(x.flatten().tolist())


def lines(x: torch.Tensor) -> set[frozenset[float]]:
    return {frozenset(row.tolist()) for row in x.flatten(0, -2)}


@settings(deadline=None)
@given(st.sampled_from(list(CUT.items())), st.integers(1, 7), st.integers(0, 2))
def test_pieces_of_views_make_up_the_whole(case: tuple[View, tuple[int, ...]], ranks: int, dim: int) -> None:
    view, shape = case
    dim %= len(shape)
    x = torch.arange(float(prod(shape))).reshape(shape)
    chunk = -(-shape[dim] // ranks)
    spans = [(min(r * chunk, shape[dim]), min((r + 1) * chunk, shape[dim])) for r in range(ranks)]
    pieces = [x.narrow(dim, a, b - a) for a, b in spans if b > a]
    first = [tuple(a if d == dim else 0 for d in range(len(shape))) for a, b in spans if b > a]
    cut = [view.cut_piece(piece, at, shape) for piece, at in zip(pieces, first, strict=True)]
    for parts, piece, at in zip(cut, pieces, first, strict=True):
        assert torch.equal(view.join_piece(parts, piece.shape, at, shape), piece)
    axis = view.axes(len(shape))[dim]
    for i, whole in enumerate(view.cut(x)):
        if axis is not None:  # the parts of a matrix lie along one of its sides
            found = torch.cat([parts[i] for parts in cut], axis)
            for a, b in ((found, whole), (found.mT, whole.mT)):  # columns of a kernel may come in another order
                assert lines(a) == lines(b)


def test_messages_travel_while_the_next_one_computes() -> None:
    said: list[str] = []

    def run(name: str) -> Generator[None, None, list[str]]:
        said.append(f"{name} sends")
        yield
        said.append(f"{name} computes")
        yield
        said.append(f"{name} ends")
        return [name]

    results = list(interleaved(([name], run(name)) for name in "abc"))  # type: ignore[misc]
    assert [answers for _, answers in results] == [["a"], ["b"], ["c"]]  # type: ignore[comparison-overlap]
    assert said.index("b sends") < said.index("a computes") < said.index("b computes") < said.index("a ends")
    assert said.index("a ends") < said.index("c computes")


def test_one_process_sends_nothing() -> None:
    p = nn.Parameter(torch.eye(4))
    p.grad = torch.ones(4, 4)
    for text in ("auto", "replicated", "owner-rank", "gram-reduced", "block-periodic:3"):
        optimizer = Muon([p], strategy=text)
        optimizer.step()
        assert (optimizer.team.wire.sent, optimizer.team.wire.messages) == (0, 0)
    wire = Wire()
    wire.count(10)
    wire.reset()
    assert wire.sent == wire.messages == 0


def test_a_plain_tensor_is_one_piece() -> None:
    place = place_of(torch.zeros(3, 4))
    assert place is not None
    assert (place.shared, place.cut, place.piece_shape(0)) == (False, (), (3, 4))
