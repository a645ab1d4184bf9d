"""Co-tuning: transfer a tuned step size and momentum to another oracle.

    advice       `advise`: which oracle to use
    rules        the four rules as plain formulas, without torch
    carry        `transfer`
    spectra      recorded spectra of momentum: shipped ones, and your own
    coordinates  `widths`: whether a learning rate carries over to another width

Names that need torch are imported on first use, so that the formulas do not need it.
"""

from typing import TYPE_CHECKING

from inexact_muon import _lazy

if TYPE_CHECKING:
    from inexact_muon_lab.tune.advice import Advice as Advice
    from inexact_muon_lab.tune.advice import advise as advise
    from inexact_muon_lab.tune.carry import Transfer as Transfer
    from inexact_muon_lab.tune.carry import transfer as transfer
    from inexact_muon_lab.tune.coordinates import Widths as Widths
    from inexact_muon_lab.tune.coordinates import widths as widths
    from inexact_muon_lab.tune.plotting import plot as plot
    from inexact_muon_lab.tune.spectra import record as record

__getattr__, __dir__ = _lazy.lazy_names(
    __name__,
    {
        "inexact_muon_lab.tune.advice": ("Advice", "advise"),
        "inexact_muon_lab.tune.carry": ("Transfer", "transfer"),
        "inexact_muon_lab.tune.coordinates": ("Widths", "widths"),
        "inexact_muon_lab.tune.plotting": ("plot",),
        "inexact_muon_lab.tune.spectra": ("record",),
    },
)
