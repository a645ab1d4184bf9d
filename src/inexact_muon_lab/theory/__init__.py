"""Every statement of the paper, its two-number version, and one step along powers, as functions of floats. No torch.

deterministic_optimal(D0=1.0, L=2.0, K=1000, delta=0.1)        # (gamma, bound), Corollary 2
measured_stochastic_bound(D0=1.0, L=2.0, K=1000, rho_sigma=1.0, gamma=0.01, alpha=0.1, gap=0.02, overshoot=1.1)
BOUNDS["stochastic-optimal"].source                            # where the paper states it

Proofs of the two-number versions (`measured_...`) and of the step along a power (`power_...`) are in docs/theory.md.
Symbols: `inexact_muon_lab.theory._base`, whose `statement` enters each statement in the `__all__` of its module.
"""

from inexact_muon_lab.theory._base import BOUNDS as BOUNDS
from inexact_muon_lab.theory._base import Optimum as Optimum
from inexact_muon_lab.theory._base import Statement as Statement
from inexact_muon_lab.theory._base import StochasticOptimum as StochasticOptimum
from inexact_muon_lab.theory.deterministic import *
from inexact_muon_lab.theory.error_model import *
from inexact_muon_lab.theory.factors import *
from inexact_muon_lab.theory.lemmas import *
from inexact_muon_lab.theory.measured_stochastic import *
from inexact_muon_lab.theory.powers import *
from inexact_muon_lab.theory.stochastic import *
from inexact_muon_lab.theory.varying import *
