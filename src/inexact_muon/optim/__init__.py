"""PyTorch optimizers over LMOs: one core and named presets.

What a step does not need is imported on first use.
"""

from typing import TYPE_CHECKING

from inexact_muon import _lazy
from inexact_muon.optim.core import LMOOptimizer as LMOOptimizer
from inexact_muon.optim.lengths import SCALES as SCALES
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
from inexact_muon.optim.telemetry import Observer as Observer
from inexact_muon.views import Flatten as Flatten
from inexact_muon.views import Interleaved as Interleaved
from inexact_muon.views import Split as Split
from inexact_muon.views import Stacked as Stacked
from inexact_muon.views import Transposed as Transposed
from inexact_muon.views import View as View
from inexact_muon.views import Whole as Whole

if TYPE_CHECKING:
    from inexact_muon.optim.clipping import clip_grad_norm_ as clip_grad_norm_
    from inexact_muon.optim.ef21 import EF21Muon as EF21Muon
    from inexact_muon.optim.explanation import Explanation as Explanation
    from inexact_muon.optim.explanation import explain as explain
    from inexact_muon.optim.foreign import TorchStates as TorchStates
    from inexact_muon.optim.foreign import load_foreign as load_foreign
    from inexact_muon.optim.foreign import to_torch as to_torch
    from inexact_muon.optim.logging import StepTimer as StepTimer
    from inexact_muon.optim.logging import flat_stats as flat_stats
    from inexact_muon.optim.logging import to_tensorboard as to_tensorboard
    from inexact_muon.optim.logging import to_wandb as to_wandb
    from inexact_muon.optim.qk_clip import QKClip as QKClip
    from inexact_muon.optim.schedule import AgnosticSchedule as AgnosticSchedule
    from inexact_muon.optim.schedule import MomentumSchedule as MomentumSchedule
    from inexact_muon.optim.stages import RMS as RMS
    from inexact_muon.optim.stages import After as After
    from inexact_muon.optim.stages import Before as Before
    from inexact_muon.optim.stages import EntryMoment as EntryMoment
    from inexact_muon.optim.stages import RowMoment as RowMoment
    from inexact_muon.optim.stages import SecondMoment as SecondMoment
    from inexact_muon.optim.stages import Signed as Signed
    from inexact_muon.optim.variants import AdaMuon as AdaMuon
    from inexact_muon.optim.variants import Hyperball as Hyperball
    from inexact_muon.optim.variants import Muon2 as Muon2
    from inexact_muon.optim.variants import NorMuon as NorMuon
    from inexact_muon.routing.routes import Route as Route
    from inexact_muon.routing.routes import routes as routes
    from inexact_muon_lab.tune.rules import constant_optimal as constant_optimal

__getattr__, __dir__ = _lazy.lazy_names(
    __name__,
    {
        "inexact_muon.optim.clipping": ("clip_grad_norm_",),
        "inexact_muon.optim.ef21": ("EF21Muon",),
        "inexact_muon.optim.explanation": ("Explanation", "explain"),
        "inexact_muon.optim.foreign": ("TorchStates", "load_foreign", "to_torch"),
        "inexact_muon.optim.logging": ("StepTimer", "flat_stats", "to_tensorboard", "to_wandb"),
        "inexact_muon.optim.qk_clip": ("QKClip",),
        "inexact_muon.optim.schedule": ("AgnosticSchedule", "MomentumSchedule"),
        "inexact_muon.optim.stages": ("RMS", "After", "Before", "EntryMoment", "RowMoment", "SecondMoment", "Signed"),
        "inexact_muon.optim.variants": ("AdaMuon", "Hyperball", "Muon2", "NorMuon"),
        "inexact_muon.routing.routes": ("Route", "routes"),
        "inexact_muon_lab.tune.rules": ("constant_optimal",),
    },
)
