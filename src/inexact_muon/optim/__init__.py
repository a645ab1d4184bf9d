"""Torch optimizers over LMOs: one core, presets with arguments filled in, a slow twin."""

from inexact_muon.optim.core import LMOOptimizer as LMOOptimizer
from inexact_muon.optim.presets import Muon as Muon
from inexact_muon.optim.presets import Scion as Scion
from inexact_muon.optim.reference import reference_step as reference_step
from inexact_muon.optim.scales import SCALES as SCALES
