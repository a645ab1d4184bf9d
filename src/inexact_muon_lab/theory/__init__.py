"""Every statement of the paper, its two-number version, and one step along powers, as functions of floats. No torch.

deterministic_optimal(D0=1.0, L=2.0, K=1000, delta=0.1)        # (gamma, bound), Corollary 2
measured_stochastic_bound(D0=1.0, L=2.0, K=1000, rho_sigma=1.0, gamma=0.01, alpha=0.1, gap=0.02, overshoot=1.1)
BOUNDS["stochastic-optimal"].source                            # where the paper states it

Proofs of the two-number versions (`measured_...`) and of the step along a power (`power_...`) are in docs/theory.md.
Symbols: `inexact_muon_lab.theory._base`.
"""

from inexact_muon_lab.theory._base import BOUNDS as BOUNDS
from inexact_muon_lab.theory._base import Optimum as Optimum
from inexact_muon_lab.theory._base import Statement as Statement
from inexact_muon_lab.theory._base import StochasticOptimum as StochasticOptimum
from inexact_muon_lab.theory.deterministic import adaptive_bound as adaptive_bound
from inexact_muon_lab.theory.deterministic import adaptive_iterations as adaptive_iterations
from inexact_muon_lab.theory.deterministic import adaptive_step as adaptive_step
from inexact_muon_lab.theory.deterministic import adaptive_uniform_bound as adaptive_uniform_bound
from inexact_muon_lab.theory.deterministic import deterministic_bound as deterministic_bound
from inexact_muon_lab.theory.deterministic import deterministic_general as deterministic_general
from inexact_muon_lab.theory.deterministic import deterministic_iterations as deterministic_iterations
from inexact_muon_lab.theory.deterministic import deterministic_optimal as deterministic_optimal
from inexact_muon_lab.theory.deterministic import l0l1_bound as l0l1_bound
from inexact_muon_lab.theory.deterministic import l0l1_iterations as l0l1_iterations
from inexact_muon_lab.theory.deterministic import measured_adaptive_bound as measured_adaptive_bound
from inexact_muon_lab.theory.deterministic import measured_adaptive_step as measured_adaptive_step
from inexact_muon_lab.theory.deterministic import measured_deterministic_bound as measured_deterministic_bound
from inexact_muon_lab.theory.deterministic import measured_deterministic_general as measured_deterministic_general
from inexact_muon_lab.theory.deterministic import measured_deterministic_iterations as measured_deterministic_iterations
from inexact_muon_lab.theory.deterministic import measured_deterministic_optimal as measured_deterministic_optimal
from inexact_muon_lab.theory.deterministic import measured_l0l1_bound as measured_l0l1_bound
from inexact_muon_lab.theory.deterministic import measured_l0l1_iterations as measured_l0l1_iterations
from inexact_muon_lab.theory.error_model import polar_express_error as polar_express_error
from inexact_muon_lab.theory.error_model import polar_express_steps as polar_express_steps
from inexact_muon_lab.theory.error_model import rho as rho
from inexact_muon_lab.theory.factors import deterministic_factor as deterministic_factor
from inexact_muon_lab.theory.factors import measured_deterministic_factor as measured_deterministic_factor
from inexact_muon_lab.theory.factors import measured_stochastic_factor as measured_stochastic_factor
from inexact_muon_lab.theory.factors import stochastic_factor as stochastic_factor
from inexact_muon_lab.theory.factors import stochastic_sensitivity as stochastic_sensitivity
from inexact_muon_lab.theory.layerwise import layerwise_bound as layerwise_bound
from inexact_muon_lab.theory.layerwise import layerwise_iterations as layerwise_iterations
from inexact_muon_lab.theory.layerwise import layerwise_sum as layerwise_sum
from inexact_muon_lab.theory.layerwise import measured_layerwise_bound as measured_layerwise_bound
from inexact_muon_lab.theory.layerwise import measured_layerwise_iterations as measured_layerwise_iterations
from inexact_muon_lab.theory.layerwise import measured_layerwise_sum as measured_layerwise_sum
from inexact_muon_lab.theory.layerwise import measured_worst_layer_factor as measured_worst_layer_factor
from inexact_muon_lab.theory.layerwise import worst_layer_factor as worst_layer_factor
from inexact_muon_lab.theory.lemmas import descent as descent
from inexact_muon_lab.theory.lemmas import measured_descent as measured_descent
from inexact_muon_lab.theory.lemmas import measured_momentum_error as measured_momentum_error
from inexact_muon_lab.theory.lemmas import measured_momentum_error_step as measured_momentum_error_step
from inexact_muon_lab.theory.lemmas import measured_polyak_step as measured_polyak_step
from inexact_muon_lab.theory.lemmas import momentum_error as momentum_error
from inexact_muon_lab.theory.lemmas import momentum_error_step as momentum_error_step
from inexact_muon_lab.theory.measured_stochastic import measured_stochastic_bound as measured_stochastic_bound
from inexact_muon_lab.theory.measured_stochastic import measured_stochastic_bound_next as measured_stochastic_bound_next
from inexact_muon_lab.theory.measured_stochastic import measured_stochastic_gamma as measured_stochastic_gamma
from inexact_muon_lab.theory.measured_stochastic import measured_stochastic_iterations as measured_stochastic_iterations
from inexact_muon_lab.theory.measured_stochastic import (
    measured_stochastic_leading_iterations as measured_stochastic_leading_iterations,
)
from inexact_muon_lab.theory.measured_stochastic import measured_stochastic_minimum as measured_stochastic_minimum
from inexact_muon_lab.theory.measured_stochastic import measured_stochastic_optimal as measured_stochastic_optimal
from inexact_muon_lab.theory.measured_stochastic import measured_stochastic_terms as measured_stochastic_terms
from inexact_muon_lab.theory.powers import power_decrease as power_decrease
from inexact_muon_lab.theory.powers import power_optimal as power_optimal
from inexact_muon_lab.theory.powers import power_share as power_share
from inexact_muon_lab.theory.powers import power_step as power_step
from inexact_muon_lab.theory.stochastic import stochastic_bound as stochastic_bound
from inexact_muon_lab.theory.stochastic import stochastic_gamma as stochastic_gamma
from inexact_muon_lab.theory.stochastic import stochastic_iterations as stochastic_iterations
from inexact_muon_lab.theory.stochastic import stochastic_leading_iterations as stochastic_leading_iterations
from inexact_muon_lab.theory.stochastic import stochastic_minimum as stochastic_minimum
from inexact_muon_lab.theory.stochastic import stochastic_optimal as stochastic_optimal
from inexact_muon_lab.theory.stochastic import stochastic_optimal_parts as stochastic_optimal_parts
from inexact_muon_lab.theory.stochastic import stochastic_terms as stochastic_terms
from inexact_muon_lab.theory.varying import agnostic_schedule as agnostic_schedule
from inexact_muon_lab.theory.varying import general_stochastic_bound as general_stochastic_bound
from inexact_muon_lab.theory.varying import measured_general_bound as measured_general_bound
from inexact_muon_lab.theory.varying import measured_momentum_errors as measured_momentum_errors
from inexact_muon_lab.theory.varying import measured_time_varying_bound as measured_time_varying_bound
from inexact_muon_lab.theory.varying import measured_time_varying_rate as measured_time_varying_rate
from inexact_muon_lab.theory.varying import measured_varying_bound as measured_varying_bound
from inexact_muon_lab.theory.varying import momentum_errors as momentum_errors
from inexact_muon_lab.theory.varying import time_varying_bound as time_varying_bound
from inexact_muon_lab.theory.varying import time_varying_rate as time_varying_rate
from inexact_muon_lab.theory.varying import varying_bound as varying_bound
