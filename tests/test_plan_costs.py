"""Flops, bytes and memory against message-by-message twins, by hand, and by the laws they must obey."""

from collections import defaultdict
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inexact_muon.plan.estimate import LADDER, SPEED, Machine, estimate, plan
from inexact_muon.plan.layout import Layout, owners
from inexact_muon.plan.models import KNOWN, Model, Weight
from inexact_muon.plan.strategies import Compressed, all_strategies, flops_of, low_rank, natural, refusal, title, top_k
from inexact_muon.plan.strategies import cost as cost_of
from inexact_muon.schedules.oracles import parse
from inexact_muon.strategies import BlockPeriodic, GramReduced, OwnerRank, Replicated

ORACLE = parse("polar-express:5")
ALL = all_strategies(5, 8, 0.05)
NATURAL = Compressed("natural", natural)


def compressed(rank: int) -> Compressed:
    return Compressed(f"rank {rank}", partial(low_rank, rank=rank))


weights = st.builds(
    Weight,
    st.sampled_from(["a.up_proj", "a.down_proj"]),
    st.tuples(st.integers(2, 9), st.integers(2, 9)).map(lambda s: (8 * s[0], 8 * s[1])),
    st.integers(1, 5),
)
models = st.lists(weights, min_size=1, max_size=4).map(lambda w: Model("random", tuple(w), 100, ""))
layouts = st.builds(
    lambda tp, dp, sharded: Layout(tp * dp, tp, sharded), st.sampled_from([1, 2, 4]), st.integers(1, 5), st.booleans()
)


def one(n: int, m: int, count: int = 1, name: str = "up_proj") -> Model:
    return Model("one", (Weight(name, (n, m), count),), 100, "")


def test_the_ladder_is_sound_and_goes_up() -> None:
    """Direct in bfloat16, in float32 with the Gram form where that is cheaper, and rational."""
    dtypes = [oracle.dtype_on("accelerator") for oracle in LADDER]
    assert dtypes == ["bfloat16"] * 8 + ["float32"] * 11
    for shape in ((16, 16), (16, 24), (16, 25), (64, 16)):
        flops = [flops_of(oracle, shape) for oracle in LADDER]
        assert flops[:8] == sorted(set(flops[:8]))
        cheaper = max(shape) > 1.5 * min(shape)
        assert [f < d for f, d in zip(flops[8:16], flops[:8], strict=True)] == [False] + [cheaper] * 7


def test_by_hand_under_ddp() -> None:
    """Three 4 x 8 matrices, two ranks: one rank works on two. Five quintics: 5 (4 n^2 m + 2 n^3) = 3200 flops."""
    layout = Layout(2, 1, sharded=False)
    cost = cost_of(OwnerRank(), one(4, 8, 3), layout, ORACLE)
    assert cost.flops == 6400
    assert cost.total_flops == 9600
    assert cost.sent == 0.5 * 96 * 2
    assert cost.gradients == 2 * 0.5 * 96 * 4
    assert cost.memory == 96 * 12 + 2 * 2 * (32 + 16)
    everywhere = cost_of(Replicated(), one(4, 8, 3), layout, ORACLE)
    assert (everywhere.flops, everywhere.sent) == (9600, 0)


def test_by_hand_under_fsdp() -> None:
    """One 8 x 4 matrix on four ranks, two rows each: three pieces of 8 numbers come, three go."""
    cost = cost_of(OwnerRank(), one(8, 4), Layout(4), ORACLE)
    assert cost.total_sent == 2 * 3 * 8 * 2
    assert cost.sent == 3 * 8 * 2  # the owner gives back; the others send one piece
    assert cost.gradients == 0.75 * 32 * 4
    gram = cost_of(GramReduced(), one(8, 4), Layout(4), ORACLE)
    assert gram.sent == 2 * 0.75 * 16 * 8
    assert gram.work == {"float64": 4 * 16 * 8 / 4 + 17 * 2 * 64}  # 5 steps of 4 products, the first without 3
    blocks = cost_of(BlockPeriodic(5), one(8, 4), Layout(4), ORACLE)
    assert blocks.flops == pytest.approx(0.2 * 3200 + 0.8 * 5 * (4 * 4 * 4 + 2 * 8))
    assert blocks.sent == pytest.approx(cost.sent / 5)


def test_by_hand_compressed() -> None:
    """Rank 2 of a 16 x 32 matrix: 96 numbers up and as many down, on three workers."""
    cost = cost_of(compressed(2), one(16, 32), Layout(3), ORACLE)
    assert cost.sent == cost.gradients == pytest.approx(2 / 3 * 96 * 2)
    packing = 4 * 16 * 32 * 2
    assert cost.work == {"bfloat16": flops_of(ORACLE, (16, 32)), "float32": pytest.approx(packing * 4 / 3)}
    assert cost.memory == 512 * 16 + 2 * 512 * 4 + 2 * 2 * (512 + 256)
    assert cost_of(Compressed("top", partial(top_k, share=0.25)), one(16, 32), Layout(3), ORACLE).sent == pytest.approx(
        2 / 3 * 512 / 4 * 6
    )
    assert cost_of(NATURAL, one(16, 32), Layout(3), ORACLE).sent == pytest.approx(2 / 3 * 512 * 9 / 8)


def owners_twin(model: Model, ranks: int) -> list[tuple[Weight, int]]:
    """(matrix, owner), the most expensive matrix first to the least busy rank."""
    busy = [0] * ranks
    given_out = []
    flat = [w for w in model.matrices for _ in range(w.count)]
    for w in sorted(flat, key=lambda w: -flops_of(ORACLE, w.shape)):
        rank = busy.index(min(busy))
        busy[rank] += flops_of(ORACLE, w.shape)
        given_out.append((w, rank))
    return given_out


@given(models, layouts)
@settings(max_examples=60, deadline=None)
def test_owner_rank_message_by_message(model: Model, layout: Layout) -> None:
    p, copies = layout.pieces, layout.copies
    there_and_back: dict[int, float] = defaultdict(float)
    handed_on: dict[int, float] = defaultdict(float)
    flops: dict[int, float] = defaultdict(float)
    for w, owner in owners_twin(model, layout.gpus):
        flops[owner] += flops_of(ORACLE, w.shape)
        group = owner // p
        for place in range(p):
            rank = group * p + place
            if rank != owner:
                there_and_back[rank] += 2 * w.entries / p
                there_and_back[owner] += 2 * w.entries / p
            for hop in range(copies - 1):
                handed_on[(group + hop) % copies * p + place] += 2 * w.entries / p
    cost = cost_of(OwnerRank(), model, layout, ORACLE)
    total = sum(there_and_back.values()) + sum(handed_on.values())
    assert cost.total_sent == pytest.approx(total)
    assert cost.flops == max(flops.values())
    assert cost.total_flops == sum(flops.values())
    if copies == 1:
        assert cost.sent == pytest.approx(max(there_and_back.values(), default=0.0))


@given(models, st.integers(2, 6))
@settings(max_examples=30, deadline=None)
def test_owner_rank_sends_each_matrix_once(model: Model, ranks: int) -> None:
    """Under DDP to each other rank once; under FSDP all but the owner's own piece there, and back."""
    payload = 2 * model.lmo_parameters
    assert cost_of(OwnerRank(), model, Layout(ranks, sharded=False), ORACLE).total_sent == pytest.approx(
        payload * (ranks - 1)
    )
    divided = cost_of(OwnerRank(), model, Layout(ranks), ORACLE)
    assert divided.total_sent == pytest.approx(2 * payload * (ranks - 1) / ranks)


@given(models, layouts)
@settings(max_examples=60, deadline=None)
def test_gram_reduced_message_by_message(model: Model, layout: Layout) -> None:
    """A ring of p ranks sums n x n numbers at the owner in p - 1 sends, and hands Q on in p - 1 sends."""
    summed = [w for w in model.matrices if layout.cuts_long_side_only(w)]
    others = replace(model, weights=tuple(w for w in model.weights if w not in summed))
    sent = sum(w.count * layout.copies * 2 * (layout.pieces - 1) * min(w.shape) ** 2 * 8 for w in summed)
    rest = cost_of(OwnerRank(), others, layout, ORACLE).total_sent
    assert cost_of(GramReduced(), model, layout, ORACLE).total_sent == pytest.approx(sent + rest)


@given(models, layouts)
@settings(max_examples=60, deadline=None)
def test_compressed_message_by_message(model: Model, layout: Layout) -> None:
    """Each of dp workers but the server's sends C of its tp pieces; the server's change is handed on dp - 1 times."""
    tp, dp = layout.tp, layout.dp
    rest = Weight("norm", (48,), lmo=False)
    up = down = together = packing = 0.0
    for w, _ in owners_twin(model, layout.gpus):
        a, b = replace(layout, sharded=False).piece(w)
        message = 2 * min(3 * (a + b), a * b)
        up += (dp - 1) * tp * message
        down += (dp - 1) * tp * message
        together += 2 * (tp - 1) * 2 * w.entries / tp
        packing += (dp + 1) * tp * 4 * a * b * min(3, a, b)
    cost = cost_of(compressed(3), replace(model, weights=(*model.weights, rest)), layout, ORACLE)
    assert cost.total_sent == pytest.approx(down + together)
    averaged = 2 * (dp - 1) / dp * 4 * 48 / tp
    assert cost.gradients * layout.gpus == pytest.approx(up + averaged * layout.gpus)
    once = sum(w.count * flops_of(ORACLE, w.shape) for w in model.matrices)
    assert cost.total_flops == pytest.approx(once + packing)


@given(models, layouts)
@settings(max_examples=30, deadline=None)
def test_replicated_piece_by_piece(model: Model, layout: Layout) -> None:
    """Every rank receives the other p - 1 pieces of each matrix."""
    p = layout.pieces
    received = sum(w.count * (p - 1) * 2 * w.entries / p for w in model.matrices)
    assert cost_of(Replicated(), model, layout, ORACLE).total_sent == pytest.approx(received * layout.gpus)


def test_memory_by_hand() -> None:
    """One 64 x 16 matrix and 48 AdamW numbers on two ranks, float32: 12 and 16 bytes a number, halved by FSDP."""
    model = Model("one", (Weight("up_proj", (64, 16)), Weight("norm", (48,), lmo=False)), 100, "")
    state, work = 1024 * 12 + 48 * 16, 2 * 2 * (1024 + 256)
    for strategy in (Replicated(), OwnerRank(), BlockPeriodic(5)):
        assert cost_of(strategy, model, Layout(2), ORACLE).memory == state / 2 + work, strategy
        assert cost_of(strategy, model, Layout(2, sharded=False), ORACLE).memory == state + work, strategy
    assert cost_of(GramReduced(), model, Layout(2), ORACLE).memory == state / 2 + 4 * 8 * 256
    assert cost_of(NATURAL, model, Layout(2), ORACLE).memory == state + 1024 * 4 + 2 * 1024 * 4 + work


def test_gram_reduced_divides_both_parts() -> None:
    """Four 64 x 16 matrices on two ranks: half of the products and two of the n x n parts each; copies repeat it."""
    model = one(64, 16, 4)
    square, products = 17 * 2 * 16**3, 4 * 4 * 16 * 16 * 64
    divided = cost_of(GramReduced(), model, Layout(2), ORACLE)
    assert divided.work == {"float64": products / 2 + 2 * square}
    assert divided.total_flops == products + 4 * square
    repeated = cost_of(GramReduced(), model, Layout(6, 2, sharded=False), ORACLE)
    assert repeated.work == divided.work
    assert repeated.total_flops == 3 * divided.total_flops


def test_which_side_is_cut() -> None:
    tall, wide, square = Weight("up", (64, 16)), Weight("up", (16, 64)), Weight("up", (16, 16))
    fsdp = Layout(4)
    assert [fsdp.cuts_long_side_only(w) for w in (tall, wide, square)] == [True, False, True]
    tp = Layout(4, 4, sharded=False)
    assert tp.cuts_long_side_only(Weight("down_proj", (16, 64)))
    both = Layout(4, 2)
    assert both.cuts_long_side_only(tall)
    assert not both.cuts_long_side_only(Weight("down_proj", (16, 64)))
    assert both.piece(Weight("down_proj", (15, 64))) == (8, 32)
    assert Layout(64).piece(square) == (1, 16)


@given(models, layouts)
@settings(max_examples=60, deadline=None)
def test_work_is_conserved(model: Model, layout: Layout) -> None:
    once = sum(w.count * flops_of(ORACLE, w.shape) for w in model.matrices)
    assert cost_of(OwnerRank(), model, layout, ORACLE).total_flops == once
    assert cost_of(Replicated(), model, layout, ORACLE).total_flops == once * layout.gpus
    for strategy in ALL:
        cost = cost_of(strategy, model, layout, ORACLE)
        assert cost.flops <= cost.total_flops * (1 + 1e-12) <= cost.flops * layout.gpus * (1 + 1e-9), strategy
        assert cost.sent <= cost.total_sent * (1 + 1e-12) <= cost.sent * layout.gpus * (1 + 1e-9), strategy


@given(models, layouts)
@settings(max_examples=40, deadline=None)
def test_identities(model: Model, layout: Layout) -> None:
    assert cost_of(BlockPeriodic(1), model, layout, ORACLE) == cost_of(OwnerRank(), model, layout, ORACLE)
    alone = Layout(1)
    for strategy in (Replicated(), OwnerRank()):
        cost = cost_of(strategy, model, alone, ORACLE)
        assert cost.sent == cost.gradients == 0
        assert cost.flops == sum(w.count * flops_of(ORACLE, w.shape) for w in model.matrices)


def test_a_message_is_never_more_than_the_matrix() -> None:
    for found in (top_k(8, 16, 2, share=1.0), top_k(8, 16, 2, share=0.9), low_rank(8, 16, 2, rank=99)):
        assert found[0] == 2 * 8 * 16
    assert top_k(8, 16, 4, share=0.1)[0] == pytest.approx(0.1 * 8 * 128)
    assert low_rank(8, 16, 4, rank=1)[0] == 4 * 24


@given(models, st.integers(1, 8), st.integers(1, 8), layouts)
@settings(max_examples=60, deadline=None)
def test_monotone(model: Model, less: int, more: int, layout: Layout) -> None:
    less, more = min(less, more), max(less, more)
    rare, often = (cost_of(BlockPeriodic(p), model, layout, ORACLE) for p in (more, less))
    assert rare.sent <= often.sent * (1 + 1e-12)
    low, high = (cost_of(compressed(r), model, layout, ORACLE) for r in (less, more))
    assert low.sent <= high.sent
    assert low.flops <= high.flops
    few, many = (cost_of(OwnerRank(), model, Layout(2**k), ORACLE) for k in (min(less, 5), min(more, 5)))
    assert many.total_sent >= few.total_sent * (1 - 1e-12)
    assert many.memory <= few.memory
    for fewer, longer in pairwise(LADDER[:8]):
        a, b = (cost_of(OwnerRank(), model, layout, oracle).total_flops for oracle in (fewer, longer))
        assert a < b


@pytest.mark.parametrize("name", sorted(KNOWN))
@pytest.mark.parametrize("sharded", [False, True])
def test_rank_eight_is_under_a_tenth(name: str, sharded: bool) -> None:
    """Both ways together, against the momentum once: width 768 and above; against FSDP's pieces it need not be."""
    matrices = tuple(w for w in KNOWN[name].matrices if min(w.shape) >= 768)
    model = replace(KNOWN[name], weights=matrices)
    low = cost_of(compressed(8), model, Layout(8, sharded=sharded), ORACLE)
    assert low.sent + low.gradients < 0.1 * cost_of(OwnerRank(), model, Layout(8, sharded=False), ORACLE).sent


def test_the_largest_share_is_least_when_counts_divide() -> None:
    loads = owners(one(4, 8, 12).matrices, 4, lambda w: 1)
    assert [load.flops for load in loads] == [3] * 4
    assert [load.entries for load in loads] == [96] * 4
    assert [load.flops for load in owners(one(4, 8, 2).matrices, 3, lambda w: 5)] == [5, 5, 0]


def test_times_by_hand() -> None:
    """1 TF at efficiency 1, 1 GB/s: seconds are flops / 1e12 and bytes / 1e9, float64 16 times slower."""
    model, layout, machine = one(8, 4), Layout(4), Machine(1.0, 1.0, 1.0)
    e = estimate(model, layout, machine, GramReduced(), ORACLE)
    assert e.model == 6 * 32 * 100 / 4 / 1e12
    assert e.compute == pytest.approx(16 * e.cost.work["float64"] / 1e12)
    assert (e.link, e.gradients) == (e.cost.sent / 1e9, e.cost.gradients / 1e9)
    assert e.share == pytest.approx((e.compute + e.link) / (e.model + e.gradients + e.compute + e.link))
    assert SPEED["float64"] == 1 / 16


def test_where_a_strategy_makes_no_sense() -> None:
    refused = {layout: [bool(refusal(s, layout)) for s in ALL] for layout in (Layout(1), Layout(2), Layout(2, 2))}
    assert refused[Layout(1)] == [False, False] + 5 * [True]
    assert refused[Layout(2)] == 7 * [False]
    assert refused[Layout(2, 2)] == 4 * [False] + 3 * [True]
    assert [bool(refusal(s, Layout(2, sharded=False))) for s in ALL] == [False, False, True, True] + 3 * [False]


def test_the_best_fits_and_is_exact() -> None:
    model = KNOWN["llama3-8b"]
    full = plan(model, Layout(8), Machine(), ORACLE, ALL)
    assert full.best is not None
    assert full.best.strategy.exact
    assert full.best.step == min(e.step for e in full.strategies if e.strategy.exact)
    assert {e.oracle for e in full.precisions} == set(LADDER)
    assert plan(model, Layout(8), Machine(memory=1.0), ORACLE, ALL).best is None
    assert {title(s) for s, _ in plan(model, Layout(1), Machine(), ORACLE, ALL).refused} == {title(s) for s in ALL[2:]}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Layout(0), "gpus must lie between 1 and 100,000, got 0"),
        (lambda: Layout(8, 3), "tp = 3 does not divide gpus = 8"),
        (lambda: Machine(link=0.0), "link must be positive"),
        (lambda: Machine(efficiency=1.5), "efficiency must be at most 1"),
        (lambda: all_strategies(0, 8, 0.05), "period must be an integer of at least 1"),
        (lambda: all_strategies(5, 0, 0.05), "rank must be at least 1"),
        (lambda: all_strategies(5, 8, 0.0), r"top-k share must lie in \(0, 1\]"),
        (lambda: parse("zolotarev:9"), "poles must lie between 1 and 8"),
        (lambda: parse("polar-express(5, form=other)"), "form must be one of auto, direct, gram"),
        (lambda: parse("cans(5, dtype=bfloat16)"), "dtype must be one of float64, float32"),
        (lambda: parse("jordn:5"), "did you mean 'jordan'"),
        (
            lambda: plan(Model("x", (Weight("b", (3,), lmo=False),), 1, ""), Layout(1), Machine(), ORACLE, ALL),
            "no hidden",
        ),
    ],
)
def test_bad_input(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match=message):
        make()
