"""What must be true of `theory`, as functions of the module: run on the real one, and on mutants of it.

Each right side is computed another way: step by step, from the proof, by hand, or by a search.
"""

from theory_checks import conditions as conditions
from theory_checks import deterministic as deterministic
from theory_checks import powers as powers
from theory_checks import stochastic as stochastic
from theory_checks import varying as varying
from theory_checks._base import CHECKS as CHECKS
