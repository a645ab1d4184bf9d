"""Polar methods: M -> approximately U V^T, as frozen dataclasses whose error bound is computed.

X = PolarExpress(5)(M)
PolarExpress(5).error_bound(1e-3)     # 0.134
parse("polar-express:5")              # the same method from its text
"""

from typing import TYPE_CHECKING

from inexact_muon import _lazy
from inexact_muon import _text as grammar
from inexact_muon.polar._base import PolarMethod as PolarMethod
from inexact_muon.polar.auto import Auto as Auto
from inexact_muon.polar.exact import ExactSVD as ExactSVD
from inexact_muon.polar.polynomial import Cans as Cans
from inexact_muon.polar.polynomial import Cesista as Cesista
from inexact_muon.polar.polynomial import Jordan as Jordan
from inexact_muon.polar.polynomial import NewtonSchulz as NewtonSchulz
from inexact_muon.polar.polynomial import PolarExpress as PolarExpress
from inexact_muon.polar.polynomial import Polynomial as Polynomial
from inexact_muon.polar.polynomial import You as You

if TYPE_CHECKING:
    from inexact_muon.polar.choice import Choice as Choice
    from inexact_muon.polar.choice import cheapest as cheapest
    from inexact_muon.polar.choice import choose as choose
    from inexact_muon.polar.rational import Zolotarev as Zolotarev
    from inexact_muon.schedules.prices import Costs as Costs
    from inexact_muon_lab.bench.calibration import calibrate as calibrate
    from inexact_muon_lab.experiments.shapes import Shaped as Shaped

__getattr__, __dir__ = _lazy.lazy_names(
    __name__,
    {
        "inexact_muon.polar.choice": ("Choice", "cheapest", "choose"),
        "inexact_muon.polar.rational": ("Zolotarev",),
        "inexact_muon.schedules.prices": ("Costs",),
        "inexact_muon_lab.bench.calibration": ("calibrate",),
        "inexact_muon_lab.experiments.shapes": ("Shaped",),
    },
)

POLARS = _lazy.Classes(
    {
        **{m.name: m for m in (PolarExpress, NewtonSchulz, Jordan, You, Cesista, Cans, Polynomial)},
        "zolotarev": "inexact_muon.polar.rational:Zolotarev",
        "exact-svd": ExactSVD,
        "auto": Auto,
        "shaped": "inexact_muon_lab.experiments.shapes:Shaped",
    }
)
"""Name -> class, used to parse text."""


def words() -> _lazy.Classes:
    """Name -> class of all that the text of a method may contain: `POLARS`, which others may extend, and shapes."""
    shapes = ("power", "floor", "ripple", "top", "dip", "contra", "clip")
    return POLARS | {name: f"inexact_muon_lab.experiments.shapes:{name}" for name in shapes}


def parse(text: str) -> PolarMethod:
    """Parse the text of a method: "polar-express(steps=5)", "polar-express:5", "exact-svd".

    >>> parse("polar-express:5") == PolarExpress(5)
    True
    """
    method = grammar.read_plugged(text, words(), "inexact_muon.polars")
    if not isinstance(method, PolarMethod):
        raise ValueError(f"{text!r} is not a polar method; write shaped(factors=({text},))")
    return method
