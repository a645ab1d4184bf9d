"""What is exported is documented, in the tables and named as agreed."""

import inspect

import pytest

import inexact_muon
from cases import BALLS, POLARS
from inexact_muon import lmo, optim, parallel, polar, schedules
from inexact_muon_lab import theory, tune

MODULES = (inexact_muon, optim, tune, polar, lmo, parallel, schedules, theory)


def public(module: object) -> dict[str, object]:
    names = [name for name in dir(module) if not name.startswith("_")]
    found = {name: getattr(module, name) for name in names}
    return {name: value for name, value in found.items() if inspect.isclass(value) or inspect.isfunction(value)}


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.__name__)
def test_everything_public_is_documented(module: object) -> None:
    assert public(module)
    for name, value in public(module).items():
        assert inspect.getdoc(value), name
        if inspect.isclass(value):
            for attribute, member in inspect.getmembers(value):
                function = member.fget if isinstance(member, property) else member
                ours = inspect.isfunction(function) and function.__module__.startswith("inexact_muon")
                if ours and not attribute.startswith("_"):
                    assert inspect.getdoc(getattr(value, attribute)), f"{name}.{attribute}"


def test_every_method_is_in_the_table() -> None:
    own = {polar.Auto}  # it has no map, and files of its own
    assert {type(m) for m in POLARS.values()} | own == set(polar.POLARS.values())
    classes = {v for v in public(polar).values() if inspect.isclass(v) and not inspect.isabstract(v)}
    assert {cls for cls in classes if issubclass(cls, polar.PolarMethod)} == set(polar.POLARS.values())


def test_every_ball_is_in_the_table() -> None:
    assert {type(b) for b in BALLS.values()} | {lmo.Perturbed} == set(lmo.LMOS.values())
    exported = {v for v in public(lmo).values() if inspect.isclass(v) and not inspect.isabstract(v)}
    assert exported == set(lmo.LMOS.values())


@pytest.mark.parametrize(
    ("cls", "signature"),
    [
        (polar.PolarExpress, ["steps", "lower", "degree", "safety", "cushion"]),
        (polar.NewtonSchulz, ["steps", "degree"]),
        (polar.Jordan, ["steps"]),
        (polar.You, ["steps"]),
        (polar.Cesista, ["steps"]),
        (polar.Cans, ["steps", "lower", "degree"]),
        (polar.Zolotarev, ["poles", "lower"]),
        (polar.Polynomial, ["coefficients"]),
        (polar.ExactSVD, []),
    ],
)
def test_agreed_fields(cls: type, signature: list[str]) -> None:
    parameters = inspect.signature(cls).parameters.values()
    assert [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY] == signature
    named = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
    assert named - {"polish", "power"} == {"dtype", "form", "normalise"}


def test_agreed_defaults() -> None:
    default = polar.PolarExpress()
    assert (default.steps, default.lower, default.degree) == (5, 1e-3, 5)
    assert (default.safety, default.cushion) == (1.01, 0.02407327424182761)
    assert (default.dtype, default.form, default.normalise) == (None, "auto", "auto")
    assert polar.Zolotarev() == polar.Zolotarev(poles=3, lower=1e-3)
    assert lmo.Spectral().polar == polar.PolarExpress(5)


@pytest.mark.parametrize("name", POLARS)
def test_methods_are_frozen_values(name: str) -> None:
    method = POLARS[name]
    with pytest.raises(AttributeError):
        method.form = "direct"  # type: ignore[misc]
    assert {method: 1}[polar.parse(name)] == 1


def test_unknown_names() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Muoon'"):
        inexact_muon.Muoon  # noqa: B018
