"""Statistics over a few seeds: paired intervals, equivalence, sample size, fitted optima, families. Torch-free.

Used by every claim of a page and every study; `tests/test_statistics.py` simulates studies with known truth and counts
wrong verdicts.
"""

from inexact_muon_lab.statistics.intervals import Interval as Interval
from inexact_muon_lab.statistics.intervals import difference as difference
from inexact_muon_lab.statistics.intervals import interval as interval
from inexact_muon_lab.statistics.intervals import known_value as known_value
from inexact_muon_lab.statistics.intervals import paired as paired
from inexact_muon_lab.statistics.intervals import quantile as quantile
from inexact_muon_lab.statistics.intervals import seeds_needed as seeds_needed
from inexact_muon_lab.statistics.intervals import spread as spread
from inexact_muon_lab.statistics.optima import Cell as Cell
from inexact_muon_lab.statistics.optima import GridOptimum as GridOptimum
from inexact_muon_lab.statistics.optima import extended as extended
from inexact_muon_lab.statistics.optima import optimum as optimum
from inexact_muon_lab.statistics.verdicts import ALPHA as ALPHA
from inexact_muon_lab.statistics.verdicts import CONFIRMED as CONFIRMED
from inexact_muon_lab.statistics.verdicts import FALSE as FALSE
from inexact_muon_lab.statistics.verdicts import LEVEL as LEVEL
from inexact_muon_lab.statistics.verdicts import OPEN as OPEN
from inexact_muon_lab.statistics.verdicts import REFUTED as REFUTED
from inexact_muon_lab.statistics.verdicts import TRUE as TRUE
from inexact_muon_lab.statistics.verdicts import UNDECIDED as UNDECIDED
from inexact_muon_lab.statistics.verdicts import PValues as PValues
from inexact_muon_lab.statistics.verdicts import Verdict as Verdict
from inexact_muon_lab.statistics.verdicts import all_of as all_of
from inexact_muon_lab.statistics.verdicts import any_of as any_of
from inexact_muon_lab.statistics.verdicts import holm as holm
from inexact_muon_lab.statistics.verdicts import negate as negate
