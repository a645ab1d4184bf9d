"""Co-tuning: transfer a tuned step size and momentum to another oracle.

    advice       `advise`: which oracle to use
    rules        the four rules as plain formulas, without torch
    carry        `transfer`
    spectra      recorded spectra of momentum: shipped ones, and your own
    checkpoints  the momentum of a saved optimizer
    coordinates  `widths`: whether a learning rate carries over to another width

Names that need torch are imported on first use, so that the formulas do not need it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inexact_muon_lab.tune.advice import Advice as Advice
    from inexact_muon_lab.tune.advice import advise as advise
    from inexact_muon_lab.tune.carry import Transfer as Transfer
    from inexact_muon_lab.tune.carry import transfer as transfer
    from inexact_muon_lab.tune.coordinates import Widths as Widths
    from inexact_muon_lab.tune.coordinates import widths as widths
    from inexact_muon_lab.tune.plotting import plot as plot
    from inexact_muon_lab.tune.spectra import record as record

_LAZY = {
    "Advice": "advice",
    "Transfer": "carry",
    "Widths": "coordinates",
    "advise": "advice",
    "plot": "plotting",
    "record": "spectra",
    "transfer": "carry",
    "widths": "coordinates",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(f"inexact_muon_lab.tune.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'inexact_muon_lab.tune' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(_LAZY)
