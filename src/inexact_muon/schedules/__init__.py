"""Scalar maps: what a polar method does to one singular value.

Every method here moves the singular values of a matrix and leaves its singular vectors alone, so
the whole error of an oracle is the error of a function of one variable. This package holds those
functions, their design and their cost, and never imports torch.
"""

from inexact_muon.schedules.decomposition import Exact as Exact
from inexact_muon.schedules.design import cans as cans
from inexact_muon.schedules.design import newton_schulz as newton_schulz
from inexact_muon.schedules.design import polar_express as polar_express
from inexact_muon.schedules.judge import Judgement as Judgement
from inexact_muon.schedules.judge import judge as judge
from inexact_muon.schedules.operations import Operation as Operation
from inexact_muon.schedules.oracles import Oracle as Oracle
from inexact_muon.schedules.published import cesista as cesista
from inexact_muon.schedules.published import jordan as jordan
from inexact_muon.schedules.published import polynomial as polynomial
from inexact_muon.schedules.published import you as you
from inexact_muon.schedules.remez import minimax as minimax
from inexact_muon.schedules.scalar_map import Polished as Polished
from inexact_muon.schedules.scalar_map import Rational as Rational
from inexact_muon.schedules.scalar_map import ScalarMap as ScalarMap
from inexact_muon.schedules.scalar_map import Schedule as Schedule
from inexact_muon.schedules.shapes import SHAPES as SHAPES
from inexact_muon.schedules.shapes import ShapedMap as ShapedMap
from inexact_muon.schedules.zolotarev import zolotarev as zolotarev
