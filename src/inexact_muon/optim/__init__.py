"""Torch optimizers over LMOs: one core, presets with arguments filled in, a slow twin."""

from inexact_muon.optim.clipping import clip_grad_norm_ as clip_grad_norm_
from inexact_muon.optim.core import LMOOptimizer as LMOOptimizer
from inexact_muon.optim.explanation import Explanation as Explanation
from inexact_muon.optim.explanation import explain as explain
from inexact_muon.optim.lengths import Clipped as Clipped
from inexact_muon.optim.lengths import Fixed as Fixed
from inexact_muon.optim.lengths import Length as Length
from inexact_muon.optim.lengths import Smooth as Smooth
from inexact_muon.optim.lengths import Steepest as Steepest
from inexact_muon.optim.presets import Muon as Muon
from inexact_muon.optim.presets import Scion as Scion
from inexact_muon.optim.presets import gluon as gluon
from inexact_muon.optim.presets import normalised_sgd as normalised_sgd
from inexact_muon.optim.presets import sign_sgd as sign_sgd
from inexact_muon.optim.presets import spectral_descent as spectral_descent
from inexact_muon.optim.reference import reference_step as reference_step
from inexact_muon.optim.routing import Route as Route
from inexact_muon.optim.routing import routes as routes
from inexact_muon.optim.scales import SCALES as SCALES
from inexact_muon.optim.schedule import AgnosticSchedule as AgnosticSchedule
from inexact_muon.optim.views import Flatten as Flatten
from inexact_muon.optim.views import Split as Split
from inexact_muon.optim.views import View as View
from inexact_muon.optim.views import Whole as Whole
