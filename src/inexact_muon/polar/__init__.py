"""Polar methods: M -> approximately U V^T, as frozen dataclasses whose error bound is computed.

X = PolarExpress(5)(M)
PolarExpress(5).error_bound(1e-3)     # 0.134
parse("polar-express:5")              # the same method from its text
"""

from inexact_muon import _text as grammar
from inexact_muon.polar._base import PolarMethod as PolarMethod
from inexact_muon.polar.auto import Auto as Auto
from inexact_muon.polar.choice import Choice as Choice
from inexact_muon.polar.choice import cheapest as cheapest
from inexact_muon.polar.choice import choose as choose
from inexact_muon.polar.compiled import Compiled as Compiled
from inexact_muon.polar.costs import calibrate as calibrate
from inexact_muon.polar.deflated import Deflated as Deflated
from inexact_muon.polar.exact import ExactSVD as ExactSVD
from inexact_muon.polar.polynomial import Cans as Cans
from inexact_muon.polar.polynomial import Cesista as Cesista
from inexact_muon.polar.polynomial import Jordan as Jordan
from inexact_muon.polar.polynomial import NewtonSchulz as NewtonSchulz
from inexact_muon.polar.polynomial import PolarExpress as PolarExpress
from inexact_muon.polar.polynomial import Polynomial as Polynomial
from inexact_muon.polar.polynomial import You as You
from inexact_muon.polar.rational import Zolotarev as Zolotarev
from inexact_muon.polar.shaped import Shaped as Shaped
from inexact_muon.schedules import SHAPES
from inexact_muon.schedules.prices import Costs as Costs

POLARS: dict[str, type[PolarMethod]] = {
    method.name: method
    for method in (
        *(PolarExpress, NewtonSchulz, Jordan, You, Cesista, Cans, Polynomial),
        *(Zolotarev, ExactSVD, Compiled, Auto, Shaped, Deflated),
    )
}
"""Name -> class, used to parse text."""


def words() -> dict[str, type]:
    """Name -> class of all that the text of a method may contain: `POLARS`, which others may extend, and shapes."""
    return {**POLARS, **SHAPES}


def parse(text: str) -> PolarMethod:
    """Parse the text of a method: "polar-express(steps=5)", "polar-express:5", "exact-svd".

    >>> parse("polar-express:5") == PolarExpress(5)
    True
    """
    method = grammar.read_plugged(text, words(), "inexact_muon.polars")
    if not isinstance(method, PolarMethod):
        raise ValueError(f"{text!r} is not a polar method; write shaped(factors=({text},))")
    return method
