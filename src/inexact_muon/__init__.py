"""inexact-muon: linear minimisation oracles whose error is known, measured and chosen.

    from inexact_muon import lmo, measure, polar

    ball = lmo.Spectral(polar=polar.PolarExpress(5))
    measure(ball, m, ball(m))      # delta, gap, overshoot of this output

Names that need torch are imported on first use, so that commands without tensors start fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inexact_muon.inexactness import Inexactness as Inexactness
    from inexact_muon.inexactness import measure as measure
    from inexact_muon.inexactness import predict as predict
    from inexact_muon.optim import EF21Muon as EF21Muon
    from inexact_muon.optim import Muon as Muon
    from inexact_muon.optim import Scion as Scion
    from inexact_muon.optim import explain as explain
    from inexact_muon_lab.tune import advise as advise
    from inexact_muon_lab.tune import plot as plot
    from inexact_muon_lab.tune import transfer as transfer

    __version__: str

_LAZY = {
    **dict.fromkeys(("Inexactness", "measure", "predict"), "inexact_muon.inexactness"),
    **dict.fromkeys(("EF21Muon", "Muon", "Scion", "explain"), "inexact_muon.optim"),
    **dict.fromkeys(("advise", "plot", "transfer"), "inexact_muon_lab.tune"),
}
_SUBPACKAGES = ("lmo", "optim", "parallel", "polar", "schedules", "theory", "tune")


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    if name in _SUBPACKAGES:
        return import_module(f"inexact_muon.{name}")
    raise AttributeError(f"module 'inexact_muon' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted((*_LAZY, *_SUBPACKAGES, "__version__"))


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("inexact-muon")
    except PackageNotFoundError:
        return "0+unknown"  # a source tree on the path, not installed
