"""Linear minimisation oracles (LMOs): unit balls with a norm, its dual, and argmin <m, d> over the ball.

ball = Spectral(polar=polar.PolarExpress(5))
d_hat = ball(m)                       # a descent direction: <m, d_hat> is about -ball.dual_norm(m)
"""

from typing import TYPE_CHECKING

from inexact_muon import _lazy
from inexact_muon import _text as grammar
from inexact_muon.lmo._base import Ball as Ball
from inexact_muon.lmo.entries import ColNorm as ColNorm
from inexact_muon.lmo.entries import Euclidean as Euclidean
from inexact_muon.lmo.entries import RowNorm as RowNorm
from inexact_muon.lmo.entries import Sign as Sign
from inexact_muon.lmo.spectral import Nuclear as Nuclear
from inexact_muon.lmo.spectral import Spectral as Spectral
from inexact_muon.polar import words

if TYPE_CHECKING:
    from inexact_muon_lab.experiments.perturbed import Perturbed as Perturbed

__getattr__, __dir__ = _lazy.lazy_names(__name__, {"inexact_muon_lab.experiments.perturbed": ("Perturbed",)})

LMOS = _lazy.Classes(
    {
        **{ball.name: ball for ball in (Spectral, Sign, Euclidean, ColNorm, RowNorm, Nuclear)},
        "perturbed": "inexact_muon_lab.experiments.perturbed:Perturbed",
    }
)
"""Name -> class, for parsing."""


def parse(text: str) -> Ball:
    """Parse a ball: "sign", "spectral(polar=jordan:5)" or "spectral(polar=jordan(steps=5))".

    >>> parse("spectral(polar=jordan(steps=5), scale=rms)").polar.steps
    5
    """
    ball = grammar.read_plugged(text, LMOS | words(), "inexact_muon.lmos", "inexact_muon.polars")
    if not isinstance(ball, Ball):
        raise ValueError(f"{text!r} is not a ball; write spectral(polar={text})")
    return ball
