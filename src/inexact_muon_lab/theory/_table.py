"""The table of all statements. Name and formula come from the function itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from inexact_muon_lab.theory import (
    adaptive,
    deterministic,
    error_model,
    factors,
    layerwise,
    lemmas,
    measured_stochastic,
    powers,
    smoothness,
    stochastic,
    varying,
)
from inexact_muon_lab.theory._base import Statement

_ROWS: tuple[tuple[Callable[..., Any], str, str], ...] = (
    (deterministic.deterministic_general, "Theorem 1", "bound"),
    (deterministic.deterministic_bound, "Corollary 1", "bound"),
    (deterministic.deterministic_optimal, "Corollary 2", "optimum"),
    (deterministic.deterministic_iterations, "Corollary 4", "count"),
    (deterministic.measured_deterministic_general, "ours", "bound"),
    (deterministic.measured_deterministic_bound, "ours", "bound"),
    (deterministic.measured_deterministic_optimal, "ours", "optimum"),
    (deterministic.measured_deterministic_iterations, "ours", "count"),
    (adaptive.adaptive_step, "Theorem 3", "step"),
    (adaptive.adaptive_bound, "Theorem 3", "bound"),
    (adaptive.adaptive_uniform_bound, "Corollary 5", "bound"),
    (adaptive.adaptive_iterations, "Corollary 6", "count"),
    (adaptive.measured_adaptive_step, "ours", "step"),
    (adaptive.measured_adaptive_bound, "ours", "bound"),
    (lemmas.descent, "Lemma 2", "lemma"),
    (lemmas.momentum_error_step, "Lemma 1", "lemma"),
    (lemmas.momentum_error, "Lemma 1", "lemma"),
    (lemmas.measured_descent, "ours", "lemma"),
    (lemmas.measured_polyak_step, "ours", "step"),
    (lemmas.measured_momentum_error_step, "ours", "lemma"),
    (lemmas.measured_momentum_error, "ours", "lemma"),
    (stochastic.stochastic_terms, "Theorem 2", "bound"),
    (stochastic.stochastic_bound, "Theorem 2", "bound"),
    (stochastic.stochastic_gamma, "Theorem 2", "step"),
    (stochastic.stochastic_optimal, "Corollary 3", "optimum"),
    (stochastic.stochastic_optimal_parts, "Corollary 3", "bound"),
    (stochastic.stochastic_minimum, "Theorem 2", "optimum"),
    (stochastic.stochastic_iterations, "Corollary 3", "count"),
    (stochastic.stochastic_leading_iterations, "Corollary 3", "count"),
    (measured_stochastic.measured_stochastic_terms, "ours", "bound"),
    (measured_stochastic.measured_stochastic_bound, "ours", "bound"),
    (measured_stochastic.measured_stochastic_bound_next, "ours", "bound"),
    (measured_stochastic.measured_stochastic_gamma, "ours", "step"),
    (measured_stochastic.measured_stochastic_optimal, "ours", "optimum"),
    (measured_stochastic.measured_stochastic_minimum, "ours", "optimum"),
    (measured_stochastic.measured_stochastic_iterations, "ours", "count"),
    (measured_stochastic.measured_stochastic_leading_iterations, "ours", "count"),
    (varying.momentum_errors, "Lemma 3", "lemma"),
    (varying.general_stochastic_bound, "Lemma 4", "bound"),
    (varying.varying_bound, "Lemmas 3 and 4", "bound"),
    (varying.time_varying_bound, "Theorem 4", "bound"),
    (varying.time_varying_rate, "Theorem 4", "bound"),
    (varying.agnostic_schedule, "Theorem 4", "step"),
    (varying.measured_momentum_errors, "ours", "lemma"),
    (varying.measured_general_bound, "ours", "bound"),
    (varying.measured_varying_bound, "ours", "bound"),
    (varying.measured_time_varying_bound, "ours", "bound"),
    (varying.measured_time_varying_rate, "ours", "bound"),
    (smoothness.l0l1_iterations, "Theorem 5", "count"),
    (smoothness.l0l1_bound, "Theorem 5", "bound"),
    (smoothness.measured_l0l1_iterations, "ours", "count"),
    (smoothness.measured_l0l1_bound, "ours", "bound"),
    (layerwise.layerwise_sum, "Theorem 6", "bound"),
    (layerwise.layerwise_bound, "Theorem 7", "bound"),
    (layerwise.layerwise_iterations, "Theorem 7", "count"),
    (layerwise.worst_layer_factor, "Theorem 7", "factor"),
    (layerwise.measured_layerwise_sum, "ours", "bound"),
    (layerwise.measured_layerwise_bound, "ours", "bound"),
    (layerwise.measured_layerwise_iterations, "ours", "count"),
    (layerwise.measured_worst_layer_factor, "ours", "factor"),
    (factors.deterministic_factor, "Corollary 2", "factor"),
    (factors.stochastic_factor, "Corollary 3", "factor"),
    (factors.stochastic_sensitivity, "Corollary 3", "factor"),
    (factors.measured_deterministic_factor, "ours", "factor"),
    (factors.measured_stochastic_factor, "ours", "factor"),
    (powers.power_optimal, "ours", "optimum"),
    (powers.power_decrease, "ours", "lemma"),
    (powers.power_step, "ours", "step"),
    (powers.power_share, "ours", "factor"),
    (error_model.polar_express_error, "Appendix A", "model"),
    (error_model.polar_express_steps, "Appendix A", "model"),
    (error_model.rho, "Assumption 3", "model"),
)


def _statement(function: Callable[..., Any], source: str, kind: str) -> Statement:
    formula = (function.__doc__ or "").strip().splitlines()[0]
    return Statement(function.__name__.replace("_", "-"), formula, source, kind, function)


BOUNDS: dict[str, Statement] = {s.name: s for s in (_statement(*row) for row in _ROWS)}
"""Name -> statement, source, kind, function."""
