"""Small laws of shared work: owners, pieces, Gram matrices, messages; in one process."""

from __future__ import annotations

from collections.abc import Generator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from cases import POLARS
from inexact_muon import Muon
from inexact_muon.optim.views import Flatten, Split, View, Whole
from inexact_muon.parallel.place import Place, place_of
from inexact_muon.parallel.tasks import assign, interleaved
from inexact_muon.parallel.wire import Wire
from inexact_muon.plan.layout import owners
from inexact_muon.plan.models import Weight
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
    with pytest.raises(NotImplementedError, match="exact-svd does not work from the Gram matrix alone"):
        POLARS["exact-svd()"].multiplier(torch.eye(3)[None])


@settings(deadline=None)
@given(st.sampled_from([Whole(), Flatten(), Split(3), Split((1, 3, 2))]), st.integers(1, 7))
def test_pieces_of_views_make_up_the_whole(view: View, ranks: int) -> None:
    x = torch.arange(24.0).reshape(6, 4)
    chunk = -(-6 // ranks)
    spans = [(min(r * chunk, 6), min((r + 1) * chunk, 6)) for r in range(ranks)]
    cut = [view.cut_piece(x[a:b], a, x.shape) for a, b in spans]
    for i, whole in enumerate(view.cut(x)):
        assert torch.equal(torch.cat([parts[i] for parts in cut]), whole)
    for parts, (a, b) in zip(cut, spans, strict=True):
        assert torch.equal(view.join(parts, x[a:b].shape), x[a:b])


def test_messages_travel_while_the_next_one_computes() -> None:
    said: list[str] = []

    def run(name: str) -> Generator[None, None, list[str]]:
        said.append(f"{name} sends")
        yield
        said.append(f"{name} computes")
        yield
        said.append(f"{name} ends")
        return [name]

    results = list(interleaved(([name], run(name)) for name in "abc"))  # type: ignore[misc,list-item]
    assert [answers for _, answers in results] == [["a"], ["b"], ["c"]]  # type: ignore[comparison-overlap]
    assert said.index("b sends") < said.index("a computes") < said.index("b computes") < said.index("a ends")
    assert said.index("a ends") < said.index("c computes")


def test_one_process_sends_nothing() -> None:
    p = nn.Parameter(torch.eye(4))
    p.grad = torch.ones(4, 4)
    for text in ("auto", "replicated", "owner-rank", "gram-reduced", "block-periodic:3", "compressed"):
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
