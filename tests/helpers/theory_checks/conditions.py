"""What is refused, and the table of all statements."""

from collections.abc import Callable
from math import inf
from types import ModuleType

import pytest

from theory_checks._base import check, same


@check
def what_is_refused(t: ModuleType) -> None:
    def refuses(words: str, function: Callable[..., object], *args: object) -> None:
        with pytest.raises(ValueError, match=words):
            function(*args)

    for delta in (1.0, 1.05, -0.05, float("nan")):
        refuses(r"delta must lie in \[0, 1\)", t.deterministic_factor, delta)
        refuses(r"delta must lie in \[0, 1\)", t.stochastic_sensitivity, 1, 1, 9, 0.0, delta)
        refuses(r"delta must lie in \[0, 1\)", t.layerwise_iterations, 1, 1, [0.0, delta])
    refuses("no bound can hold", t.deterministic_factor, 1.0)
    for gap in (1.0, 1.05, float("nan"), -inf):
        refuses("gap must be below 1", t.measured_deterministic_factor, gap, 3.0)
    refuses("below 1 - gap", t.measured_deterministic_factor, 0.1, 0.899)
    t.measured_deterministic_factor(0.1, 0.9)
    t.measured_deterministic_factor(0.1, 0.9 * (1 - 1e-12))
    t.deterministic_factor(0.999)
    for alpha in (0.0, 1.05, -0.05):
        refuses(r"alpha must lie in \(0, 1\]", t.stochastic_gamma, 1, 1, 1, alpha, 0)
    t.stochastic_gamma(1, 1, 1, 1.0, 0)
    t.stochastic_gamma(1, 1, 1, 1e-3, 0)
    for bad in (0.0, -1.0, inf, float("nan")):
        refuses("D0 must be positive", t.deterministic_bound, bad, 1, 1, 1, 0)
        refuses("gamma must be positive", t.deterministic_bound, 1, 1, 1, bad, 0)
        refuses("overshoot must be positive", t.measured_momentum_error, 1, 1, 1, 1, 1, bad)
    t.deterministic_bound(1e-3, 1e-3, 1e-3, 1e-3, 0)
    refuses(r"got -1\.0$", t.deterministic_bound, -1.0, 1, 1, 1, 0)
    refuses(r"got \[1, 2, 3, 4, 5, 0\]$", t.deterministic_general, 1, 1, [1, 2, 3, 4, 5, 0], 0.1)
    refuses(r"got \[1, 2, 3, \.\.\., 0\]$", t.deterministic_general, 1, 1, [1, 2, 3, 4, 5, 6, 0], 0.1)
    refuses("K must be at most 1e8", t.agnostic_schedule, 1e9, 0.1, 0.1)
    refuses("K must be at most 1e8", t._base.check_length, 1.05e8)
    t._base.check_length(1e8)
    for bad in (-0.05, inf, float("nan")):
        refuses("rho_sigma must be finite", t.stochastic_bound, 1, 1, 1, bad, 1, 1, 0)
        refuses("rho_sigma must be finite", t.measured_stochastic_optimal, 1, 1, 1, bad, 0, 1)
    t.stochastic_bound(1, 1, 1, 1e-3, 1, 1, 0)
    t.stochastic_bound(1, 1, 1, 0.0, 1, 1, 0)
    for L0, L1 in ((0.0, 0.0), (-0.05, 1.0), (1.0, -0.05), (inf, 1.0), (1.0, inf)):
        refuses("L0 and L1", t.l0l1_bound, 1, L0, L1, 1, 0)
    t.l0l1_bound(1, 0.01, 0.01, 1, 0)
    refuses("same length", t.deterministic_general, 1, 1, [0.1, 0.2], [0.1, 0.2, 0.3])
    refuses("gammas must be positive", t.deterministic_general, 1, 1, [], [])
    same(t.deterministic_general(1, 1, 0.1, 0.2), t.deterministic_general(1, 1, [0.1], [0.2]))
    for lower in (0.0, 1.05, -0.05):
        refuses("lower must lie", t.polar_express_error, lower, 1)
        refuses("lower must lie", t.polar_express_steps, 0.5, lower)
    t.polar_express_error(0.05, 1)
    for delta in (0.0, 1.0, 1.05):
        refuses(r"delta must lie in \(0, 1\)", t.polar_express_steps, delta, 0.5)
    assert t.polar_express_steps(0.05, 0.9, 3) == 1
    for degree in (1, 2, 4):
        refuses("degree must be odd", t.polar_express_error, 0.5, 1, degree)
    for steps in (-1, 1.5):
        refuses("steps must be a whole number", t.polar_express_error, 0.5, steps)
    refuses("did you mean 'spectral'", t.rho, "spectrl", 1, 1)
    for shape in ((0, 1), (1, 0)):
        refuses("n and m must be at least 1", t.rho, "sign", *shape)


@check
def the_table_knows_every_function(t: ModuleType) -> None:
    public = {f for n, f in vars(t).items() if callable(f) and not isinstance(f, type) and not n.startswith("_")}
    assert {s.function for s in t.BOUNDS.values()} == public
    for name, s in t.BOUNDS.items():
        assert s.name == name == s.function.__name__.replace("_", "-")
        assert s.kind in {"bound", "optimum", "count", "step", "lemma", "factor", "model"}
        assert (s.source == "ours") == name.startswith(("measured-", "power-"))
        assert s.statement
        if s.source != "ours":
            assert any(word in s.function.__doc__ for word in s.source.split(" and ")), name
