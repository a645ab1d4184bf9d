"""Which oracle each layer gets: against brute force, without flapping, and with a text."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from inexact_muon import polar, predict, theory
from inexact_muon.polar import ExactSVD, PolarExpress
from inexact_muon.schedules import grammar
from inexact_muon.schedules.spectra import gaussian, power_law
from inexact_muon.tune import Adaptive, Budget, allocate
from inexact_muon.tune.policy import choose, economise, parse_policy, rms_error, table
from matrices import matrix

COSTS = np.array([1.0, 2.0, 3.0, 4.0])


@st.composite
def tables(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, float]:
    """Costs, factors and a budget of up to 4 layers and 4 candidates; small integers, so that ties are common."""
    shape = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    numbers = st.lists(st.integers(1, 12), min_size=shape[0] * shape[1], max_size=shape[0] * shape[1])
    costs, factors = (np.array(draw(numbers), dtype=float).reshape(shape) for _ in range(2))
    return costs, factors, draw(st.integers(int(costs.min(1).sum()), int(costs.max(1).sum())))


def every_choice(costs: np.ndarray, budget: float) -> list[tuple[int, ...]]:
    layers, candidates = costs.shape
    choices = itertools.product(range(candidates), repeat=layers)
    return [c for c in choices if sum(costs[i, k] for i, k in enumerate(c)) <= budget]


def chosen(values: np.ndarray, choice: tuple[int, ...]) -> np.ndarray:
    return values[np.arange(len(choice)), list(choice)]


def smallest_sum(costs: np.ndarray, values: np.ndarray, budget: float) -> float:
    """Exact dynamic program over the pairs (cost, value) that no other pair beats."""
    front = {0.0: 0.0}
    for c, v in zip(costs, values, strict=True):
        grown: dict[float, float] = {}
        for (spent, total), k in itertools.product(front.items(), range(len(c))):
            if spent + c[k] <= budget:
                grown[spent + c[k]] = min(grown.get(spent + c[k], np.inf), total + v[k])
        front = {s: t for s, t in grown.items() if all(t < u for r, u in grown.items() if r < s)}
    return min(front.values())


@given(tables())
def test_the_smallest_worst_layer_is_that_of_brute_force(case: tuple[np.ndarray, np.ndarray, float]) -> None:
    costs, factors, budget = case
    found, choices = allocate(costs, factors, budget), every_choice(costs, budget)
    worst = min(chosen(factors, c).max() for c in choices)
    assert chosen(factors, found).max() == worst
    cheapest = min(chosen(costs, c).sum() for c in choices if chosen(factors, c).max() == worst)
    assert chosen(costs, found).sum() == cheapest


@given(tables(), st.lists(st.integers(0, 5), min_size=4, max_size=4))
def test_the_weighted_sum_is_within_one_step_of_the_optimum(
    case: tuple[np.ndarray, np.ndarray, float], weights: list[int]
) -> None:
    costs, factors, budget = case
    weight = np.array(weights[: len(costs)], dtype=float)
    values = weight[:, None] * factors
    found = allocate(costs, factors, budget, weight)
    best = smallest_sum(costs, values, budget)
    assert best == min(chosen(values, c).sum() for c in every_choice(costs, budget))
    assert chosen(costs, found).sum() <= budget
    assert best <= chosen(values, found).sum() <= best + np.ptp(values, axis=1).max()


@given(tables(), st.floats(0.01, 100.0))
def test_the_weighted_sum_is_optimal_at_its_own_cost(case: tuple[np.ndarray, np.ndarray, float], price: float) -> None:
    """Corners of the convex hull: with the budget that the best answer at a price takes, nothing is better."""
    costs, factors, _ = case
    priced = [int(np.lexsort((c, f + price * c))[0]) for c, f in zip(costs, factors, strict=True)]
    budget = chosen(costs, tuple(priced)).sum()
    found = allocate(costs, factors, budget, np.ones(len(costs)))
    assert chosen(factors, found).sum() == pytest.approx(smallest_sum(costs, factors, budget))


def test_more_budget_is_never_worse() -> None:
    rng = np.random.default_rng(0)
    costs, factors = rng.random((6, 5)), 1.0 + rng.random((6, 5))
    budgets = np.linspace(costs.min(1).sum(), costs.max(1).sum(), 30)
    worst = [chosen(factors, allocate(costs, factors, b)).max() for b in budgets]
    assert all(a >= b for a, b in itertools.pairwise(worst))
    assert worst[-1] == factors.min(1).max()


def test_weights_decide_where_precision_goes() -> None:
    costs, factors = np.array([[1.0, 2.0]] * 2), np.array([[1.5, 1.0]] * 2)
    assert allocate(costs, factors, 3.0, [1.0, 9.0]) == (0, 1)
    assert allocate(costs, factors, 3.0, [9.0, 1.0]) == (1, 0)
    assert allocate(costs, np.array([[np.inf, 1.0]] * 2), 3.0, [0.0, 1.0]) == (0, 1)


def test_a_step_that_does_not_fit_bars_the_later_ones_of_its_layer() -> None:
    costs, factors = np.array([[1.0, 10.0, 11.0]]), np.array([[12.0, 2.0, 1.0]])
    assert [allocate(costs, factors, b, [1.0]) for b in (5.0, 10.0, 11.0)] == [(0,), (1,), (2,)]


def test_budget_mode_minimises_the_factor_of_the_layerwise_theorem() -> None:
    methods = [polar.PolarExpress(k) for k in range(1, 7)]
    shapes = [(64, 64), (64, 256), (32, 32)]
    values = [power_law(64), gaussian(64), power_law(32, 0.3)]
    pairs = [table(methods, shape, s) for shape, s in zip(shapes, values, strict=True)]
    costs, factors = np.array([c for c, _ in pairs]), np.array([f.deterministic for _, f in pairs])
    budget = costs[:, 4].sum()
    found = allocate(costs, factors, budget)
    judged = [predict(methods[k], s) for k, s in zip(found, values, strict=True)]
    factor = theory.measured_worst_layer_factor([i.gap for i in judged], [i.overshoot for i in judged])
    assert factor == pytest.approx(chosen(factors, found).max() ** 2)
    assert factor <= factors[:, 4].max() ** 2
    assert costs[0, 2] == methods[2].flops(64, 64)


@given(st.lists(st.floats(1.0, 1.3), min_size=4, max_size=4), st.sampled_from([None, 0, 1, 2, 3]), st.floats(0.0, 0.9))
def test_choose_is_the_cheapest_that_may_be_taken(factors: list[float], current: int | None, band: float) -> None:
    found = choose(COSTS, factors, current, 1.1, band)
    enter = [k for k in range(4) if factors[k] - 1.0 <= (1.0 - band) * (1.1 - 1.0)]
    stay = [current] if current is not None and factors[current] - 1.0 <= 1.1 - 1.0 else []
    under = [k for k in range(4) if factors[k] - 1.0 <= 1.1 - 1.0]
    if enter or stay:
        assert found == min(enter + stay)
    elif under:
        assert found == min(under)
    else:
        assert factors[found] == min(factors) or found == current
    assert choose(COSTS, factors, found, 1.1, band) == found, "constant factors: no second change"


@given(st.data())
def test_no_flapping_inside_the_band(data: st.DataObject) -> None:
    """Excesses that move by less than 1/(1 - hysteresis): at most as many changes as there are candidates."""
    band = data.draw(st.floats(0.05, 0.8))
    base = np.array(data.draw(st.lists(st.floats(0.001, 0.3), min_size=4, max_size=4)))
    base[-1] = 0.001  # one that is always good enough
    current, changes = None, []
    for _ in range(30):
        moved = base * [data.draw(st.floats(1.0, 0.999 / (1.0 - band))) for _ in base]
        new = choose(COSTS, 1.0 + moved, current, 1.05, band)
        changes += [new] if new != current else []
        current = new
    assert len(changes) <= len(COSTS)


def test_without_hysteresis_it_flaps_and_with_it_not() -> None:
    noisy = [1.049, 1.051] * 10
    for band, most in ((0.0, 20), (0.2, 2)):
        current, changes = 0, 0
        for factor in noisy:
            new = choose([1.0, 2.0], [factor, 1.0], current, 1.05, band)
            changes, current = changes + (new != current), new
        assert changes == (19 if band == 0.0 else 1)
        assert changes <= most


def test_of_equal_costs_the_present_choice_stays_and_else_the_better_one_is_taken() -> None:
    costs, factors = [1.0, 1.0, 2.0], [1.02, 1.01, 1.0]
    assert [choose(costs, factors, current) for current in (None, 0, 1, 2)] == [1, 0, 1, 1]


def test_none_is_good_enough() -> None:
    assert choose(COSTS, [np.inf, 1.5, 1.2, 1.3], None, 1.05) == 2
    assert choose(COSTS, [np.inf, 1.5, 1.2, 1.21], 3, 1.05, 0.2) == 3
    assert choose(COSTS, [np.inf, 1.5, 1.2, 1.9], 3, 1.05, 0.2) == 2
    assert choose(COSTS, [np.inf] * 4, 1) == 1


def test_a_layer_gets_what_it_needs() -> None:
    policy = Adaptive(target=1.05)
    spectra = (np.linspace(1.0, 0.8, 64), np.concatenate([[1.0], np.full(63, 2e-3)]))
    flat, steep = (policy.choose((64, 64), s) for s in spectra)
    assert policy.candidates[flat].flops(64, 64) < policy.candidates[steep].flops(64, 64)
    for s, k in zip(spectra, (flat, steep), strict=True):
        factors = [predict(m, s).stochastic_factor for m in policy.candidates]
        good = [i for i, factor in enumerate(factors) if factor <= 1.04]
        assert k == min(good, key=lambda i: (policy.candidates[i].flops(64, 64), factors[i]))
        assert policy.choose((64, 64), s, k) == k


@pytest.mark.parametrize(
    "policy",
    [
        Adaptive(),
        Adaptive(1.2, every=7, hysteresis=0.0),
        Adaptive(candidates=(polar.You(6), polar.Zolotarev(2, lower=1e-2), polar.Polynomial(((1.5, -0.5),)))),
        Adaptive(candidates=("polar-express:3",)),  # type: ignore[arg-type]
    ],
    ids=str,
)
def test_text(policy: Adaptive) -> None:
    assert parse_policy(str(policy)) == policy
    assert parse_policy(grammar.write(policy, full=True)) == policy
    assert {policy: 1}[parse_policy(str(policy))] == 1
    with pytest.raises(AttributeError):
        policy.target = 2.0  # type: ignore[misc]


def test_short_text() -> None:
    assert parse_policy("adaptive:1.1") == Adaptive(1.1)
    text = "adaptive(target=1.1, candidates=(polar-express:3, zolotarev:2))"
    assert parse_policy(text).candidates == (polar.PolarExpress(3), polar.Zolotarev(2))


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: Adaptive(1.0), ValueError, "target must be above 1"),
        (lambda: Adaptive(every=0), ValueError, "every must be an integer"),
        (lambda: Adaptive(every=2.5), ValueError, "every must be an integer"),
        (lambda: Adaptive(hysteresis=1.0), ValueError, "hysteresis must lie in"),
        (lambda: Adaptive(candidates=()), ValueError, "one or more polar methods"),
        (lambda: Adaptive(candidates=(3,)), TypeError, "must be a polar method, got int"),
        (lambda: parse_policy("you:6"), ValueError, "is not a policy"),
        (lambda: parse_policy("adaptiv:1.1"), ValueError, "did you mean 'adaptive'"),
        (lambda: choose([1.0], [1.0, 2.0]), ValueError, "of one shape"),
        (lambda: choose([1.0], [np.nan]), ValueError, "factors must be numbers"),
        (lambda: choose([np.inf], [1.0]), ValueError, "costs must be finite"),
        (lambda: choose([1.0], [1.0], 1), ValueError, "current must be a place among 1"),
        (lambda: allocate([[2.0, 3.0]], [[1.0, 1.0]], 1.0), ValueError, "budget 1 is below 2"),
        (lambda: allocate([[2.0]], [[1.0]], np.nan), ValueError, "budget nan is below 2"),
        (lambda: allocate([[2.0]], [[1.0]], 3.0, [1.0, 2.0]), ValueError, "weights must be 1 numbers"),
        (lambda: allocate([2.0], [1.0], 3.0), ValueError, "layers x candidates"),
    ],
)
def test_bad_input_is_one_sentence(make, error, words) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(error, match=words) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_rms_is_the_frobenius_distance_over_the_square_root_of_the_rank() -> None:
    m = matrix(20, 30, "log-uniform-1e-3", seed=0, dtype=torch.float64)
    for method in (PolarExpress(2), PolarExpress(5, lower=0.1)):
        distance = torch.linalg.matrix_norm(method(m) - ExactSVD()(m)) / 20**0.5
        assert rms_error(method, torch.linalg.svdvals(m).numpy()) == pytest.approx(float(distance), rel=1e-9)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Adaptive(by="delta"), "by must be factor or rms"),
        (lambda: Adaptive(target=1.05, by="rms"), "between 0 and 1"),
        (lambda: Budget(1e6, weighted=True, by="rms"), "weighted is for by=factor"),
        (lambda: Budget(1e6, by="gap"), "by must be factor or rms"),
    ],
)
def test_a_measure_that_does_not_fit_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_a_policy_by_rms_has_a_text() -> None:
    for policy in (Adaptive(target=0.2, by="rms"), Budget(1e6, by="rms")):
        assert parse_policy(str(policy)) == policy


@given(tables(), st.integers(1, 48))
def test_what_is_economised_is_within_the_limit_and_within_one_step_of_the_least_cost(
    case: tuple[np.ndarray, np.ndarray, float], limit: int
) -> None:
    costs, values, _ = case
    layers = range(len(costs))
    every = list(itertools.product(range(costs.shape[1]), repeat=len(costs)))
    total = {c: sum(values[i, c[i]] for i in layers) for c in every}
    cost = {c: sum(costs[i, c[i]] for i in layers) for c in every}
    chosen = tuple(economise(costs, values, limit))
    good = [c for c in every if total[c] <= limit]
    if not good:
        assert total[chosen] == min(total.values())
        return
    assert total[chosen] <= limit
    longest = max(float(row.max() - row.min()) for row in costs)
    assert cost[chosen] <= min(cost[c] for c in good) + longest


def test_what_is_good_enough_by_rms_stays_unless_much_is_saved() -> None:
    costs, errors = np.array([[1.0, 1.1, 2.0]]), np.array([[0.2, 0.1, 0.05]])
    policy = Adaptive(target=0.25, hysteresis=0.2, by="rms")
    assert policy.decide(costs, errors, [None], [4]) == [0]
    assert policy.decide(costs, errors, [1], [4]) == [1]
    assert policy.decide(costs, errors, [2], [4]) == [0]
    assert policy.decide(costs, 2.0 * errors, [0], [4]) == [1]
