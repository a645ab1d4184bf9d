"""Each stage is its equation, written out one matrix at a time in float64; on one process, masked, and on ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from inexact_muon import Muon
from inexact_muon.optim import finite
from inexact_muon.optim.rows import Rows
from ranks import on_ranks
from stage_cases import ALL, CASES, CONSECUTIVE, VIEWED, trained, written_out
from test_parallel_collectives import on_threads

LAYOUTS: dict[str, tuple[int | None, ...]] = {"rows": (0,), "columns": (1,), "copies of rows": (None, 0)}
ROUTES = (
    *(("rows", s) for s in ("owner-rank", "replicated", "gram-reduced", "block-periodic:1")),
    *(("columns", s) for s in ("owner-rank", "gram-reduced")),
    *(("ddp", s) for s in ("owner-rank", "auto")),
)
"""(layout, strategy)"""


def close(
    found: list[Tensor], expected: list[Tensor], tolerance: float, what: Any = "", only: Sequence[int] = ALL
) -> None:
    for x, k in zip(found, only, strict=True):
        error = float((x - expected[k]).abs().max())
        assert error <= tolerance, (what, VIEWED[k], error)


@pytest.mark.parametrize("readable", [("cpu",), ()], ids=["host", "accelerator"])
@pytest.mark.parametrize("name", CASES)
def test_a_stage_is_its_equation(name: str, readable: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finite, "HOST_READABLE", readable)
    params, _ = trained(torch.clone, **CASES[name])
    close([p.detach() for p in params], written_out(CASES[name]), 1e-12)


@pytest.fixture
def any_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of these small matrices, too, become lines of one stack."""
    monkeypatch.setattr(Rows, "SHORTEST", 1)


def lines(optimizer: Muon) -> int:
    """Lines of the longest row, where rows of several lengths are one stack."""
    batches = [batch for chunk in optimizer.plan.chunks for batch in chunk]  # type: ignore[union-attr]
    layouts = [batch.layout for batch in batches if batch.layout is not None]
    return max([layout.rows("rows").lines.width for layout in layouts], default=1)


@pytest.mark.usefixtures("any_length")
@pytest.mark.parametrize("readable", [("cpu",), ()], ids=["host", "accelerator"])
@pytest.mark.parametrize("name", CASES)
def test_rows_of_several_lengths_as_lines_of_one(
    name: str, readable: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finite, "HOST_READABLE", readable)
    params, optimizer = trained(torch.clone, only=CONSECUTIVE, **CASES[name])
    assert lines(optimizer) > 1 or "decay" in CASES[name]
    close([p.detach() for p in params], written_out(CASES[name]), 1e-12, only=CONSECUTIVE)


@pytest.mark.parametrize("name", CASES)
def test_without_room_for_all_at_once_the_result_is_the_same(name: str) -> None:
    params, _ = trained(torch.clone, memory_limit=1, **CASES[name])
    close([p.detach() for p in params], written_out(CASES[name]), 1e-12)


def laid_out(world: int, dims: tuple[int | None, ...]) -> Callable[[Tensor], Any]:
    mesh = init_device_mesh("cpu", (world,) if len(dims) == 1 else (2, world // 2))
    placements = [Replicate() if dim is None else Shard(dim) for dim in dims]
    return lambda whole: distribute_tensor(whole.clone(), mesh, placements, src_data_rank=None)


def on_routes(rank: int, world: int, routes: list[tuple[str, str]], masked: bool, joined: bool) -> list[Any]:
    finite.HOST_READABLE, Rows.SHORTEST = () if masked else ("cpu",), 1 if joined else Rows.SHORTEST
    found = []
    for layout, strategy in routes:
        place: Callable[[Tensor], Any] = torch.clone if layout == "ddp" else laid_out(world, LAYOUTS[layout])
        for options in CASES.values():
            more: dict[str, Any] = {"strategy": strategy, "sample_every": 2, **options}
            params, optimizer = trained(place, only=CONSECUTIVE if joined else ALL, **more)
            assert not joined or lines(optimizer) > 1 or "decay" in options
            whole = [p.detach().full_tensor() if layout != "ddp" else p.detach() for p in params]
            measured = {key: (x.gap, x.overshoot) for key, x in optimizer.inexactness(applied=True).items()}
            found.append((whole, measured))
    return found


def compare(world: int, routes: list[tuple[str, str]], masked: bool = False, joined: bool = False) -> None:
    ranks, only = on_ranks(on_routes, world, routes, masked, joined), CONSECUTIVE if joined else ALL
    cases = [(*route, name) for route in routes for name in CASES]
    for k, (layout, strategy, name) in enumerate(cases):
        expected = written_out(CASES[name])
        _, optimizer = trained(torch.clone, only=only, sample_every=2, **CASES[name])
        measured = optimizer.inexactness(applied=True)
        for whole, samples in (rank[k] for rank in ranks):
            # Gram matrices square the condition number.
            close(whole, expected, 1e-10 if strategy == "gram-reduced" else 1e-12, (layout, strategy, name), only)
            assert all(map(torch.equal, whole, ranks[0][k][0])), "ranks differ"
            assert samples.keys() == measured.keys()
            for key, x in measured.items():
                assert samples[key] == pytest.approx((x.gap, x.overshoot), abs=1e-6), (layout, strategy, name, key)


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3])
def test_every_route_gives_the_same(world: int) -> None:
    compare(world, list(ROUTES))


@pytest.mark.slow
def test_copies_are_counted_once() -> None:
    compare(4, [("copies of rows", "owner-rank"), ("copies of rows", "replicated")])


@pytest.mark.slow
@pytest.mark.parametrize("masked", [False, True])
def test_lines_of_one_stack_on_ranks(masked: bool) -> None:
    compare(3, [("rows", "owner-rank"), ("columns", "owner-rank")], masked, joined=True)


@pytest.mark.slow
def test_ranks_with_accelerators() -> None:
    compare(2, [("rows", "owner-rank"), ("ddp", "owner-rank")], masked=True)


def one_matrix(rank: int, world: int) -> list[Tensor]:
    """A replicated matrix after some steps on accelerators, with a stage and without: all ranks but one own nothing."""
    finite.HOST_READABLE = ()
    cases: tuple[dict[str, Any], ...] = (CASES["row moment"], {})
    return [trained(torch.clone, only=(0,), strategy="owner-rank", **case)[0][0].detach() for case in cases]


def test_ranks_that_own_no_matrix() -> None:
    for found in on_ranks(one_matrix, 2):
        for x, case in zip(found, (CASES["row moment"], {}), strict=True):
            close([x], written_out(case), 1e-12, only=(0,))


def messages(rank: int, world: int, cases: list[dict[str, Any]]) -> list[int]:
    """Messages of a later step, of matrices that are one chunk."""
    place, found = laid_out(world, (0,)), []
    for options in cases:
        params = [nn.Parameter(place(torch.eye(4, 6) + k)) for k in range(5)]
        optimizer = Muon(params, **options)
        for _ in range(2):
            for p in params:
                p.grad = place(torch.eye(4, 6))
            optimizer.team.wire.reset()
            optimizer.step()
        found.append(optimizer.team.wire.messages)
    return found


def test_a_stage_adds_one_message_for_a_chunk_or_none() -> None:
    names = ("row moment", "rms", "fixed norm", "second moment", "sign", "entry moment", "cautious", "independent")
    for plain, *found in on_ranks(messages, 2, [{}, *(CASES[name] for name in names)]):
        assert [count - plain for count in found] == [1, 1, 1, 0, 0, 0, 0, 0]


def test_two_ranks_in_short() -> None:
    compare(2, [("rows", "owner-rank")])


@pytest.mark.filterwarnings("ignore:DTensor random operators")
@pytest.mark.parametrize("name", ["row moment", "adamuon", "rows on spheres"])
def test_where_only_collectives_work(name: str) -> None:
    """Ranks of threads cannot send to each other: every rank has the whole matrices."""
    pytest.importorskip("torch.testing._internal.distributed.multi_threaded_pg")

    def run() -> list[Tensor]:
        mesh = init_device_mesh("cpu", (2,))

        def place(x: Tensor) -> Any:
            return distribute_tensor(x.clone(), mesh, [Shard(0)], src_data_rank=None)

        params, _ = trained(place, **CASES[name])
        return [p.detach().full_tensor() for p in params]

    for found in on_threads(2, run):
        close(found, written_out(CASES[name]), 1e-12)
