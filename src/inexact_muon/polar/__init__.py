"""Polar methods: M -> approximately U V^T, as frozen values whose error is known.

X = PolarExpress(5)(M)
PolarExpress(5).error_bound(1e-3)     # 0.134
parse("polar-express:5")              # the same from text
"""

from inexact_muon import _text as grammar
from inexact_muon.polar._base import PolarMethod as PolarMethod
from inexact_muon.polar.auto import Auto as Auto
from inexact_muon.polar.choice import Choice as Choice
from inexact_muon.polar.choice import cheapest as cheapest
from inexact_muon.polar.choice import choose as choose
from inexact_muon.polar.compiled import Compiled as Compiled
from inexact_muon.polar.costs import calibrate as calibrate
from inexact_muon.polar.exact import ExactSVD as ExactSVD
from inexact_muon.polar.polynomial import Cans as Cans
from inexact_muon.polar.polynomial import Cesista as Cesista
from inexact_muon.polar.polynomial import Jordan as Jordan
from inexact_muon.polar.polynomial import NewtonSchulz as NewtonSchulz
from inexact_muon.polar.polynomial import PolarExpress as PolarExpress
from inexact_muon.polar.polynomial import Polynomial as Polynomial
from inexact_muon.polar.polynomial import You as You
from inexact_muon.polar.rational import Zolotarev as Zolotarev
from inexact_muon.polar.research import Deflated as Deflated
from inexact_muon.polar.research import Shaped as Shaped
from inexact_muon.schedules import SHAPES
from inexact_muon.schedules.prices import Costs as Costs

POLARS: dict[str, type[PolarMethod]] = {
    method.name: method
    for method in (
        *(PolarExpress, NewtonSchulz, Jordan, You, Cesista, Cans, Polynomial),
        *(Zolotarev, ExactSVD, Compiled, Auto, Shaped, Deflated),
    )
}
"""Name -> class, for text only."""


def words() -> dict[str, type]:
    """`POLARS` as it is now, since others register theirs in it, and what a method may hold."""
    return {**POLARS, **SHAPES}


def parse(text: str) -> PolarMethod:
    """The method that a text names: "polar-express(steps=5)", "polar-express:5", "exact-svd".

    >>> parse("polar-express:5") == PolarExpress(5)
    True
    """
    method = grammar.read_plugged(text, words(), "inexact_muon.polars")
    if not isinstance(method, PolarMethod):
        raise ValueError(f"{text!r} is not a polar method; write shaped(factors=({text},))")
    return method
