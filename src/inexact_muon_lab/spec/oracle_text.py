"""The parts of an oracle's text, without torch: what runs of a study are told apart by."""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from inspect import Parameter, signature

from inexact_muon._text import call
from inexact_muon.schedules import design, published
from inexact_muon.schedules.rational import zolotarev
from inexact_muon.schedules.scalar_map import Exact, ScalarMap

DESIGNS: dict[str, Callable[..., ScalarMap]] = {
    "polar-express": design.polar_express,
    "newton-schulz": design.newton_schulz,
    "jordan": published.jordan,
    "you": published.you,
    "cesista": published.cesista,
    "cans": design.cans,
    "polynomial": published.polynomial,
    "zolotarev": zolotarev,
    "exact-svd": lambda: Exact(),
}
"""Name of an oracle -> the function that designs its map; its parameters are the oracle's own options."""

BY_GRAM = ("polar-express", "cans", "zolotarev")
"""Oracles that are normalised by schatten4 unless told otherwise; the others by frobenius."""

COUNTS = ("steps", "poles")
"""Options that count iterations."""


@dataclass(frozen=True)
class OracleText:
    """The parts of an oracle's text: "polar-express(steps=5, lower=0.01)" -> family, iterations, the rest.

    Texts of one oracle have equal parts: options that are defaults are left out.
    """

    family: str
    iterations: int | None
    options: tuple[tuple[str, str], ...] = ()
    """(name, value) of each; without a name where the oracle is not known."""

    @property
    def plain(self) -> bool:
        """Whether it is a family at a number of iterations, without other options."""
        return self.iterations is not None and not self.options

    @property
    def full(self) -> str:
        """The family, with all of its options."""
        options = ", ".join(f"{name}={value}" if name else value for name, value in self.options)
        return f"{self.family}({options})" if options else self.family

    @property
    def label(self) -> str:
        """The family, with the options that change the map: not the normaliser, which may tell two oracles apart."""
        return replace(self, options=tuple(o for o in self.options if o[0] != "normalise")).full


@lru_cache(maxsize=1024)  # the runs of a study name few oracles
def parts(text: str) -> OracleText:
    """Split a text into its parts; the family is the whole text if it cannot be parsed."""
    try:
        name, arguments = call(text)
    except ValueError:
        name, arguments = "", []
    if not name:
        return OracleText(text, None)
    own = signature(DESIGNS[name]).parameters if name in DESIGNS else {}
    count = next((own[key].default for key in COUNTS if key in own), None)
    names = [key for key, parameter in own.items() if parameter.kind is not parameter.KEYWORD_ONLY]
    options = []
    for index, (key, value) in enumerate(arguments):
        option = key or (names[index] if index < len(names) else "")
        if value.isdigit() and (option in COUNTS or (not key and index == 0)):
            count = int(value)
        elif name not in DESIGNS or _canonical(value) not in _defaults(name, option, own):
            options.append((option, _canonical(value) if option else value))
    return OracleText(name, count, tuple(sorted(options) if name in DESIGNS else options))


def _defaults(name: str, option: str, own: Mapping[str, Parameter]) -> tuple[str, ...]:
    """Texts of an option's default; "auto" is also the normaliser that it stands for."""
    if option == "normalise":
        return "auto", "schatten4" if name in BY_GRAM else "frobenius"
    defaults = {"dtype": None, "form": "auto", **{key: parameter.default for key, parameter in own.items()}}
    return (_canonical(str(defaults[option])),) if option in defaults else ()


def _canonical(text: str) -> str:
    """One text for all ways to write a number."""
    try:
        return repr(literal_eval(text))
    except (ValueError, SyntaxError):
        return text
