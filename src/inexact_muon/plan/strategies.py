"""Cost of running the oracle on many ranks: communication, memory, and distribution of work.

Conventions. A matrix has n x m entries, n <= m; a group of p = `layout.pieces` ranks holds its pieces, c =
`layout.copies` groups hold replicas. Pieces are assumed equal, S/p of the S entries. Gradients have been averaged
before, and each rank has updated its piece of the momentum; that communication is counted separately
(`Cost.gradients`). Momentum and directions are sent in the oracle's dtype, w bytes a number. Collectives are rings:
all-gather and reduce-scatter of S numbers send (p-1)/p S from each rank, all-reduce twice that. Matrices are processed
one at a time. `flops` and `sent` are those of the busiest rank, totals those of all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, singledispatch
from typing import ClassVar

from inexact_muon.plan.layout import NUMBER, Layout, Load, gradient_bytes, owners, state_bytes
from inexact_muon.plan.models import Model, Weight
from inexact_muon.schedules.operations import BYTES, Operation
from inexact_muon.schedules.oracles import Oracle
from inexact_muon.schedules.prices import ACCELERATOR
from inexact_muon.strategies import BlockPeriodic, GramReduced, OwnerRank, Replicated, Strategy

DEVICE = ACCELERATOR.device
DOUBLE = 8
INDEX = 4
"""Bytes of an index into a matrix."""


@dataclass(frozen=True)
class Cost:
    """Cost of one step, on average.

    Attributes:
        work: floating point operations of the busiest rank, by dtype.
        total_flops: of all ranks together.
        sent: bytes that the busiest rank sends for the oracle.
        total_sent: of all ranks together.
        gradients: bytes that each rank sends to average gradients, or instead of it.
        memory: bytes held by the fullest rank: weights, gradients, state, and the oracle's work space.
    """

    work: Mapping[str, float]
    total_flops: float
    sent: float
    total_sent: float
    gradients: float
    memory: float

    @property
    def flops(self) -> float:
        """Flops of the busiest rank, over all dtypes."""
        return sum(self.work.values())


@dataclass(frozen=True)
class Compressed(Strategy):
    """EF21-Muon (arXiv 2510.00643), as run by `optim.EF21Muon`: momenta are sent to a server, which sends back weights.

    Attributes:
        title: name of the compressor.
        message: (bytes, flops) of C(x) from n, m and the bytes of a number.
    """

    name: ClassVar[str] = "compressed"
    exact: ClassVar[bool] = False

    title: str
    message: Callable[[int, int, int], tuple[float, int]]


def low_rank(n: int, m: int, size: int, *, rank: int) -> tuple[float, int]:
    """P Q^T of rank r: r (n + m) numbers; one pass of subspace iteration, two products of 2 n m r."""
    return size * min(rank * (n + m), n * m), 4 * n * m * min(rank, n, m)


def top_k(n: int, m: int, size: int, *, share: float) -> tuple[float, int]:
    """The largest `share` of the entries, each with an index; or all entries if that is smaller."""
    return min(share * (size + INDEX), size) * n * m, 0


def natural(n: int, m: int, size: int) -> tuple[float, int]:
    """Each entry rounded to a power of two: sign and exponent, 9 bits of a float32 or bfloat16 (arXiv 1905.10988)."""
    return min(9 / 8, size) * n * m, 0


def all_strategies(period: int, rank: int, top: float) -> tuple[Strategy, ...]:
    """All strategies of a plan."""
    if rank < 1:
        raise ValueError(f"rank must be at least 1, got {rank}")
    if not 0 < top <= 1:
        raise ValueError(f"top-k share must lie in (0, 1], got {top}")
    compressed = (
        Compressed(f"rank {rank}", partial(low_rank, rank=rank)),
        Compressed(f"top {top:.3g}", partial(top_k, share=top)),
        Compressed("natural", natural),
    )
    return Replicated(), OwnerRank(), GramReduced(), BlockPeriodic(period), *compressed


def title(strategy: Strategy) -> str:
    """Display name of a strategy."""
    match strategy:
        case BlockPeriodic(period=period):
            return f"{strategy.name}, P={period}"
        case Compressed(title=compressor):
            return f"{strategy.name}, {compressor}"
    return strategy.name


def refusal(strategy: Strategy, layout: Layout) -> str:
    """Why a strategy does not apply to this layout; empty if it does."""
    match strategy:
        case GramReduced() if layout.pieces == 1:
            return "no matrix is divided"
        case BlockPeriodic() if layout.pieces == 1:
            return "no matrix is divided into blocks"
        case Compressed() if layout.dp == 1:
            return "there is one worker"
    return ""


@singledispatch
def cost(strategy: Strategy, model: Model, layout: Layout, oracle: Oracle) -> Cost:
    """Cost of one step."""
    raise TypeError(f"a plan has no cost of {strategy}")


@cost.register
def _(strategy: Replicated, model: Model, layout: Layout, oracle: Oracle) -> Cost:
    """Sent every step: an all-gather of each momentum in its group, (p-1)/p S w from each rank.

    Nothing under DDP without tensor parallelism. Memory: one whole matrix and its work space.
    """
    flops = sum(w.count * flops_of(oracle, w.shape) for w in model.matrices)
    sent = (layout.pieces - 1) / layout.pieces * model.lmo_parameters * size_of(oracle)
    return Cost(
        work={oracle.dtype_on(DEVICE): flops},
        total_flops=flops * layout.gpus,
        sent=sent,
        total_sent=sent * layout.gpus,
        gradients=gradient_bytes(model.parameters, layout),
        memory=state_bytes(model, layout) + workspace(model.matrices, oracle),
    )


@cost.register
def _(strategy: OwnerRank, model: Model, layout: Layout, oracle: Oracle) -> Cost:
    """Each matrix is orthogonalised by one of all ranks.

    Sent every step: in the owner's group each other rank sends its piece to the owner (S/p), and the owner sends back
    the pieces of the direction; between replicas, a ring distributes these pieces ((c-1)/c S/p from each rank). So
    under DDP each matrix is sent to every other rank once; under FSDP it is sent to its owner and back. Memory: one
    whole matrix and its work space.
    """
    loads = owners(model.matrices, layout.gpus, lambda w: flops_of(oracle, w.shape))
    round_trip = gathered(loads, layout.pieces, size_of(oracle))
    ring = (layout.copies - 1) / layout.copies * model.lmo_parameters / layout.pieces * size_of(oracle)
    return Cost(
        work={oracle.dtype_on(DEVICE): max(load.flops for load in loads)},
        total_flops=sum(load.flops for load in loads),
        sent=max(round_trip) + ring,
        total_sent=sum(round_trip) + ring * layout.gpus,
        gradients=gradient_bytes(model.parameters, layout),
        memory=state_bytes(model, layout) + workspace(model.matrices, oracle),
    )


@cost.register
def _(strategy: GramReduced, model: Model, layout: Layout, oracle: Oracle) -> Cost:
    """No rank assembles a whole matrix, if exactly the long side is divided and the oracle works from X X^T.

    Every step, each rank forms the Gram matrix of its piece; a reduce-scatter sums them at one owner per matrix in the
    group (n^2 numbers of 8 bytes); the owner computes Q such that z = Q X, on n x n matrices; an all-gather sends Q to
    all (n^2 again); each rank multiplies its piece. In float64 and without restarts, because the order of a float32 sum
    over shards changes z by 1e-3 for an ill-conditioned matrix. Replicas repeat the work and do not communicate.
    Matrices whose short side is divided are processed as in owner-rank: redistributing them would send as much. Memory:
    four n x n matrices in float64.
    """
    p = layout.pieces
    summed = tuple(w for w in model.matrices if oracle.from_gram and layout.cuts_long_side_only(w))
    others = tuple(w for w in model.weights if w not in summed)
    rest = cost(OwnerRank(), replace(model, weights=others), layout, oracle)
    squares = owners(summed, p, lambda w: _total(oracle.map.square_operations(min(w.shape), 1, "float64")))
    products = sum(w.count * 4 * min(w.shape) ** 2 * max(w.shape) for w in summed)
    numbers = sum(w.count * min(w.shape) ** 2 for w in summed)
    sent = 2 * (p - 1) / p * numbers * DOUBLE
    work = {"float64": products / p + max(load.flops for load in squares)}
    held = max((4 * DOUBLE * min(w.shape) ** 2 for w in summed), default=0)
    return Cost(
        work=added(work, rest.work),
        total_flops=layout.copies * (products + sum(load.flops for load in squares)) + rest.total_flops,
        sent=sent + rest.sent,
        total_sent=sent * layout.gpus + rest.total_sent,
        gradients=gradient_bytes(model.parameters, layout),
        memory=state_bytes(model, layout) + max(held, workspace(replace(model, weights=others).matrices, oracle)),
    )


@cost.register
def _(strategy: BlockPeriodic, model: Model, layout: Layout, oracle: Oracle) -> Cost:
    """On P - 1 of P steps each rank orthogonalises its own piece and sends nothing; replicas repeat the work.

    The P-th step is owner-rank. The two kinds of step need two step sizes. A different update from Muon's unless P = 1.
    Memory: as owner-rank.
    """
    full, often = cost(OwnerRank(), model, layout, oracle), 1 / strategy.period
    blocks = sum(w.count * flops_of(oracle, layout.piece(w)) for w in model.matrices)
    return replace(
        full,
        work={oracle.dtype_on(DEVICE): often * full.flops + (1 - often) * blocks},
        total_flops=often * full.total_flops + (1 - often) * blocks * layout.gpus,
        sent=often * full.sent,
        total_sent=often * full.total_sent,
    )


@cost.register
def _(strategy: Compressed, model: Model, layout: Layout, oracle: Oracle) -> Cost:
    """The dp groups are the workers, and the owner of a matrix is its server.

    Every step worker j sends C(M_j - G_j) to the server instead of a gradient; the server orthogonalises G = mean_j G_j
    and sends C(X - W) to all. Under tensor parallelism C applies to a rank's piece; the server gathers the pieces of G
    and scatters the direction as in owner-rank. Sent by each rank: (dp-1)/dp of all compressed pieces up, and as much
    down (a ring). AdamW's gradients are averaged by all-reduce. Memory: momenta and G_j differ between workers, so
    nothing is divided over dp: W, gradient, M_j and G_j of the rank's piece, and X and G of what it owns. A different
    update from Muon's unless C is the identity.
    """
    layout = replace(layout, sharded=False)
    loads = owners(model.matrices, layout.gpus, lambda w: flops_of(oracle, w.shape))
    assembly = gathered(loads, layout.tp, size_of(oracle))
    messages = [(w.count, *strategy.message(*layout.piece(w), size_of(oracle))) for w in model.matrices]
    once = (layout.dp - 1) / layout.dp * sum(count * size for count, size, _ in messages)
    packing = sum(count * flops for count, _, flops in messages)
    rest = model.parameters - model.lmo_parameters
    server = packing / layout.dp
    busiest = {oracle.dtype_on(DEVICE): float(max(load.flops for load in loads))}
    return Cost(
        work=added(busiest, {"float32": packing + server}),
        total_flops=sum(load.flops for load in loads) + (packing + server) * layout.gpus,
        sent=max(assembly) + once,
        total_sent=sum(assembly) + once * layout.gpus,
        gradients=once + gradient_bytes(rest, layout),
        memory=state_bytes(model, layout)
        + NUMBER * (model.lmo_parameters / layout.tp + 2 * max(load.entries for load in loads))
        + workspace(model.matrices, oracle),
    )


def flops_of(oracle: Oracle, shape: Sequence[int]) -> int:
    """Flops of one matrix on one rank."""
    return _total(oracle.operations(shape[0], shape[1], DEVICE))


def size_of(oracle: Oracle) -> int:
    """Bytes of one number on the wire."""
    return BYTES[oracle.dtype_on(DEVICE)]


def _total(operations: Sequence[Operation]) -> int:
    return int(sum(operation.flops for operation in operations))


def added(*works: Mapping[str, float]) -> dict[str, float]:
    """The sum by dtype, without zeros."""
    dtypes = sorted({dtype for work in works for dtype, flops in work.items() if flops})
    return {dtype: sum(work.get(dtype, 0) for work in works) for dtype in dtypes}


def gathered(loads: Sequence[Load], p: int, size: int) -> list[float]:
    """Bytes that each rank sends to gather matrices on owners and scatter the directions, in groups of p."""
    sent = []
    for first in range(0, len(loads), p):
        group = loads[first : first + p]
        entries = sum(load.entries for load in group)
        sent += [size * ((entries - load.entries) / p + (p - 1) / p * load.entries) for load in group]
    return sent


def workspace(matrices: Sequence[Weight], oracle: Oracle) -> int:
    """Bytes of X, the next X and two n x n matrices, for the largest matrix."""
    return max((2 * size_of(oracle) * (w.entries + min(w.shape) ** 2) for w in matrices), default=0)
