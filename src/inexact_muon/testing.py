"""Contract suites for user-defined polar methods and balls, which live in the lab."""

from inexact_muon_lab.testing import allowed_error as allowed_error
from inexact_muon_lab.testing import check_ball as check_ball
from inexact_muon_lab.testing import check_polar as check_polar
from inexact_muon_lab.testing import rounding_term as rounding_term
