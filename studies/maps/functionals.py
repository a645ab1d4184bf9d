"""Numbers of a map f on recorded spectra, and how well each orders the losses of oracles.

Each is small for the exact polar factor, f = 1. Means are over all singular values of all layers, each alike, unless
the name says weighted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

sys.path.insert(0, str(Path(__file__).parents[1] / "cotuning"))
sys.path.insert(0, str(Path(__file__).parents[1] / "precision"))
from carry import Layers, answers
from judge import lift

from inexact_muon import polar
from inexact_muon_lab.tune.spectra import judge_layers

Array = NDArray[np.float64]
Number = Callable[[str, Layers], float]
LEAST = 1e-3
"""What f counts as where a map leaves a direction out, in a logarithm."""


def mean(of: Callable[[Array], Array]) -> Number:
    """The mean of a function of f."""

    def number(oracle: str, layers: Layers) -> float:
        return float(of(np.concatenate(answers(oracle, layers))).mean())

    return number


def flatness(oracle: str, layers: Layers) -> float:
    """1 - (mean f)^2 / mean f^2: how far the map is from a constant, whatever its scale."""
    f = np.concatenate(answers(oracle, layers))
    return float(1.0 - f.mean() ** 2 / (f * f).mean())


def weighted(oracle: str, layers: Layers) -> float:
    """Sum sigma (1 - f)^2 / sum sigma."""
    found = answers(oracle, layers)
    error = sum(float(la.values @ (1.0 - f) ** 2) for la, f in zip(layers, found, strict=True))
    return error / sum(float(la.values.sum()) for la in layers)


def over_the_top(oracle: str, layers: Layers) -> float:
    """Minus the mean of log f, over f of the largest singular value of its layer: blind to the scale of a map."""
    found = answers(oracle, layers)
    logs = [np.log(np.maximum(f, LEAST)) for f in found]
    tops = [log[la.values.argmax()] for la, log in zip(layers, logs, strict=True)]
    return float(np.mean(tops) - np.concatenate(logs).mean())


NUMBERS: dict[str, Number] = {
    "share of f < 1/2": mean(lambda f: (f < 0.5).astype(np.float64)),
    "flatness": flatness,
    "mean (1 - f)^2": mean(lambda f: (1.0 - f) ** 2),
    "- mean log f": mean(lambda f: -np.log(np.maximum(f, LEAST))),
    "- mean log f/f(top)": over_the_top,
    "- lift of small": lambda oracle, layers: -lift(polar.parse(oracle), list(layers)),
    "weighted (1 - f)^2": weighted,
    "gap": lambda oracle, layers: float(judge_layers(polar.parse(oracle), layers).gap),
    "overshoot": lambda oracle, layers: float(judge_layers(polar.parse(oracle), layers).overshoot),
    "delta": lambda oracle, layers: float(judge_layers(polar.parse(oracle), layers).delta),
}
"""Name -> a number of an oracle's text on spectra."""


def numbers(oracle: str, layers: Layers) -> dict[str, float]:
    """All of them."""
    return {name: number(oracle, layers) for name, number in NUMBERS.items()}


def ranks(losses: Mapping[str, float], layers: Layers) -> dict[str, float]:
    """The rank correlation of each number with the loss, over oracles; nan if a number is the same for all."""
    found = {oracle: numbers(oracle, layers) for oracle in losses}
    return {
        name: float(spearmanr([found[oracle][name] for oracle in losses], list(losses.values()))[0]) for name in NUMBERS
    }
