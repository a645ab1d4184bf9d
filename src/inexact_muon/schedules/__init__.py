"""Scalar maps: the functions that polar methods apply to singular values.

Every method changes the singular values of a matrix and keeps its singular vectors, so the error of an oracle is the
error of a function of one variable. This package has these functions, their design and their cost; it does not import
torch.
"""

from typing import TYPE_CHECKING

from inexact_muon import _lazy
from inexact_muon.schedules.design import cans as cans
from inexact_muon.schedules.design import minimax as minimax
from inexact_muon.schedules.design import newton_schulz as newton_schulz
from inexact_muon.schedules.design import polar_express as polar_express
from inexact_muon.schedules.judgement import Judgement as Judgement
from inexact_muon.schedules.judgement import judge as judge
from inexact_muon.schedules.prices import Operation as Operation
from inexact_muon.schedules.published import cesista as cesista
from inexact_muon.schedules.published import jordan as jordan
from inexact_muon.schedules.published import polynomial as polynomial
from inexact_muon.schedules.published import you as you
from inexact_muon.schedules.scalar_map import Exact as Exact
from inexact_muon.schedules.scalar_map import ScalarMap as ScalarMap
from inexact_muon.schedules.scalar_map import Schedule as Schedule

if TYPE_CHECKING:
    from inexact_muon.schedules.rational import Rational as Rational
    from inexact_muon.schedules.rational import zolotarev as zolotarev

__getattr__, __dir__ = _lazy.lazy_names(__name__, {"inexact_muon.schedules.rational": ("Rational", "zolotarev")})
