"""Small laws of shared work: owners, pieces, Gram matrices, messages; in one process."""

from __future__ import annotations

from collections.abc import Generator
from math import prod

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from cases import POLARS
from inexact_muon import Muon
from inexact_muon.lmo import Spectral
from inexact_muon.optim.batches import Member
from inexact_muon.optim.lengths import Fixed
from inexact_muon.optim.ranks import assign
from inexact_muon.optim.stepplan import interleaved
from inexact_muon.parallel.place import Place, place_of
from inexact_muon.parallel.wire import Wire
from inexact_muon.polar import PolarExpress
from inexact_muon.views import Flatten, Interleaved, Split, Stacked, Transposed, View, Whole, parse
from matrices import matrix


@given(st.lists(st.integers(2, 30), min_size=1, max_size=12), st.integers(1, 5))
def test_the_most_expensive_goes_to_the_least_busy(sides: list[int], ranks: int) -> None:
    members = []
    for n in sides:
        p = torch.empty(n, n, device="meta")
        place = Place((n, n), tuple((rank,) for rank in range(ranks)), (((0, n), (0, n)),))
        members.append(Member(p, {}, {}, p, (p,), Spectral(polar=PolarExpress(5)), Fixed(), Whole(), place=place))
    assign(members)
    cost = {n: PolarExpress(5).flops_on(n, n, None) for n in sides}
    loads = [sum(cost[m.p.shape[0]] for m in members if m.owner == rank) for rank in range(ranks)]
    assert max(loads) <= sum(loads) / ranks + max(cost.values())
    assert {m.owner for m in members} <= set(range(ranks))


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
    Interleaved((2, 1), 2): (6, 4),
    Interleaved((1, 1, 2), 3): (12, 2),
    Transposed(Interleaved((2, 1), 2)): (4, 6),
    Transposed(Stacked(2, transposed=True)): (4, 6),
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

    def run(name: str) -> Generator[None, None, None]:
        said.append(f"{name} sends")
        yield
        said.append(f"{name} computes")
        yield
        said.append(f"{name} ends")

    interleaved(run(name) for name in "abc")
    assert [x for x in said if x.endswith(" ends")] == ["a ends", "b ends", "c ends"]
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
