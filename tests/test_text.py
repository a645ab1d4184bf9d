"""str and parse are inverse; unknown text says what exists."""

from importlib.metadata import EntryPoint

import pytest
import torch

from cases import BALLS, POLARS
from inexact_muon import _text as grammar
from inexact_muon import lmo, polar


@pytest.mark.parametrize("name", POLARS)
def test_round_trip(name: str) -> None:
    method = POLARS[name]
    assert polar.parse(str(method)) == method
    assert polar.parse(grammar.write(method, full=True)) == method
    assert hash(polar.parse(str(method))) == hash(method)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_round_trip_of_options(dtype: torch.dtype) -> None:
    form = "direct" if dtype == torch.bfloat16 else "gram"
    method = polar.PolarExpress(3, dtype=dtype, form=form, normalise="frobenius")
    text = str(method)
    assert "torch" not in text
    assert polar.parse(text) == method


@pytest.mark.parametrize("name", BALLS)
def test_round_trip_of_balls(name: str) -> None:
    assert lmo.parse(str(BALLS[name])) == BALLS[name]
    assert lmo.parse(grammar.write(BALLS[name], full=True)) == BALLS[name]


def test_round_trip_of_a_perturbed_ball() -> None:
    ball = lmo.Perturbed(
        lmo.Spectral(polar=polar.Zolotarev(4, lower=1e-4), scale="rms-max"), delta=0.25, direction="worst"
    )
    assert lmo.parse(str(ball)) == ball


def test_short_forms() -> None:
    assert polar.parse("polar-express:5") == polar.PolarExpress(5)
    assert polar.parse(" zolotarev:2 ") == polar.Zolotarev(2)
    assert polar.parse("exact-svd") == polar.ExactSVD()
    assert polar.parse("polar-express(3, 1e-2)") == polar.PolarExpress(3, lower=1e-2)
    assert lmo.parse("spectral(polar=jordan:3)") == lmo.Spectral(polar=polar.Jordan(3))
    assert lmo.parse("col-norm(scale=rms)") == lmo.ColNorm(scale="rms")


def test_only_what_differs_is_written() -> None:
    assert str(polar.PolarExpress(5)) == "polar-express(steps=5)"
    assert "lower=0.001" in grammar.write(polar.PolarExpress(5), full=True)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("polar-expres:5", ("polar-expres", "did you mean 'polar-express'", "known: auto, cans")),
        ("polar-express(step=5)", ("'step'", "did you mean 'steps'")),
        ("polar-express(steps=)", ("cannot read",)),
        ("polar-express(steps=__import__('os'))", ("unknown name",)),
        ("polar-express(steps=1+1)", ("cannot read the value",)),
        ("polar-express(5, 1e-3, 5, 1.01, 0.02, 7)", ("cannot build",)),
        ("", ("cannot read",)),
        ("5", ("expected a name",)),
        ("sign", ("unknown name 'sign'",)),
        ("polar-express(dtype=int8)", ("unknown dtype 'int8'", "float32")),
        ("polar-express(normalise=frobenus)", ("did you mean 'frobenius'",)),
        ("polar-express(form=row)", ("form must be one of auto, direct, gram",)),
        ("polar-express:1000000", ("steps must be at most 64, got 1000000",)),
        ("newton-schulz:1000000000", ("steps must be at most 64, got 1000000000",)),
        ("auto(chosen=((8, 8, cpu, jordan(steps=1000000000)),))", ("steps must be at most 64",)),
        ("zolotarev:1000000000", ("poles must lie between 1 and 8",)),
        (f"polar-express(degree=({'3, ' * 20_000}))", ("20000 degrees for steps=5",)),
        (f"polynomial((({'1.0, ' * 9_000}),))", ("at most 32 coefficients, got 9000",)),
        (f"polynomial(({'(1.5, -0.5), ' * 5_000}))", ("at most 64 steps, got 5000",)),
        (f"auto(chosen=({'(8, 8, cpu, jordan(5)), ' * 2_000}))", ("names 2001 methods",)),
        ("polynomial(((nan, 1.0),))", ("coefficients must be finite",)),
        ("-" * 3000, ("cannot read",)),
        ("-" * 3000 + "5", ("cannot read",)),
        (f"polar-express({'-' * 3000}5)", ("cannot read",)),
        ("shaped(" * 3000 + ")" * 3000, ("cannot read",)),
        ("1" + "+1" * 20_000, ("cannot read",)),
        ("a-" * 40_000 + "a", ("unknown name",)),
        ("a" * 200_000, ("at most 100000 characters, got 200000",)),
        ("jordan(steps=" + "9" * 5000 + ")", ("cannot read",)),
        ("jordan\0", ("cannot read",)),
        ("jordan\ud800", ("cannot read",)),
    ],
)
def test_bad_text(text: str, words: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=words[0]) as caught:
        polar.parse(text)
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500
    str(caught.value).encode()  # can be printed


@pytest.mark.parametrize(
    "text", ["spectral(polar=newton-schulz:1000000000)", "perturbed(inner=spectral(polar=polar-express:1000000))"]
)
def test_counts_are_bounded_inside_balls_too(text: str) -> None:
    with pytest.raises(ValueError, match="steps must be at most 64"):
        lmo.parse(text)


def test_a_polar_method_is_no_ball() -> None:
    with pytest.raises(ValueError, match="write spectral"):
        lmo.parse("jordan:5")


def test_text_is_text() -> None:
    with pytest.raises(TypeError, match="expected the text"):
        polar.parse(5)  # type: ignore[arg-type]


def test_names_of_installed_packages_are_read_and_loaded_only_when_named(monkeypatch: pytest.MonkeyPatch) -> None:
    offered = {
        "inexact_muon.polars": (
            EntryPoint("svd", "inexact_muon.polar:ExactSVD", ""),
            EntryPoint("broken", "no:No", ""),
        ),
        "inexact_muon.lmos": (EntryPoint("signs", "inexact_muon.lmo:Sign", ""),),
    }
    monkeypatch.setattr(grammar, "_points", lambda group: offered[group])
    assert polar.parse("svd") == polar.ExactSVD()
    assert lmo.parse("signs") == lmo.Sign()
    assert lmo.parse("spectral(polar=svd())") == lmo.Spectral(polar=polar.ExactSVD())
    with pytest.raises(ModuleNotFoundError):
        polar.parse("broken")
    with pytest.raises(ValueError, match="unknown name 'other'"):
        polar.parse("other")
