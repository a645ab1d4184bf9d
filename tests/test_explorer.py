"""What the explorer of the site reads is what the package and the other libraries have."""

import json
import re

import numpy as np
import pytest

pytest.importorskip("mkdocs", reason="the site needs the extra `docs`")

from inexact_muon import polar
from inexact_muon.schedules.published import JORDAN, YOU
from inexact_muon_lab.tune import spectra
from pages import ROOT, load_module
from test_schedules_regenerate import CANS, POLAR_EXPRESS, SAFETY_2_PERCENT

EXPLORER = load_module(ROOT / "docs/explorer.py")
DATA = json.loads(json.dumps(EXPLORER.data()))
STEPS = {oracle["id"]: oracle["map"].get("steps") for oracle in DATA["oracles"]}

SAFER = [[c / 1.01 ** (2 * k + 1) for k, c in enumerate(step)] for step in POLAR_EXPRESS[:7]] + [POLAR_EXPRESS[7]]
"""The paper's list with its safety factor, of which Emerging-Optimizers has four digits."""


def after_division(steps: tuple[tuple[float, ...], ...], margin: float) -> list[list[float]]:
    first = [c / margin ** (2 * k + 1) for k, c in enumerate(steps[0])]
    return [first, *map(list, steps[1:])]


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("torch", [JORDAN] * 5),
        ("airbench", [JORDAN] * 3),
        ("dion", after_division(SAFETY_2_PERCENT, 1.02)),
        ("nanochat", after_division(SAFETY_2_PERCENT, 1.01)),
        ("dion-newton-schulz", YOU[5]),
        ("emerging-cans", CANS),
        ("gram-newton-schulz", [[c / 1.05 ** (2 * k + 1) for k, c in enumerate(s)] for s in POLAR_EXPRESS[:5]]),
        ("deepseek-v4", [JORDAN] * 8 + [(2.0, -1.5, 0.5)] * 2),
    ],
)
def test_libraries_have_their_published_steps(name: str, published: list[list[float]]) -> None:
    np.testing.assert_allclose(STEPS[name], published, rtol=1e-9)


def test_four_digits_of_the_paper() -> None:
    np.testing.assert_allclose(STEPS["emerging-polar-express-8"], SAFER, rtol=0, atol=1e-4)
    assert STEPS["emerging-polar-express"] == STEPS["emerging-polar-express-8"][:5]


def test_every_oracle_has_its_own_name_and_a_source() -> None:
    assert len(STEPS) == len(DATA["oracles"])
    for oracle in DATA["oracles"]:
        assert oracle["source"]
        if oracle["library"]:
            assert re.search(r"20\d\d|torch 2\.", oracle["source"]), oracle["id"]
            assert (oracle["norm"], oracle["form"]) == ("frobenius", "direct")
        else:
            assert oracle["norm"] == polar.parse(oracle["id"]).normaliser


def test_recorded_spectra_are_the_shipped_ones() -> None:
    shipped = spectra.load(spectra.SHIPPED)
    assert [layer["name"] for layer in DATA["layers"]] == [layer.name for layer in shipped]
    runs = [run["id"] for run in DATA["recorded"]]
    assert sorted(runs) == [label for label in spectra.labels(shipped) if "/" not in label]
    for ours, theirs in zip(DATA["layers"], shipped, strict=True):
        kept = spectra.positions(theirs.values.size)
        values = ours["top"] * 10.0 ** np.array(ours["logs"])
        np.testing.assert_allclose(values, theirs.values[kept], rtol=1e-7)
        assert (ours["rank"], tuple(ours["shape"])) == (theirs.values.size, theirs.shape)


def test_the_page_alone_is_one_file_without_addresses() -> None:
    page = EXPLORER.alone(["zolotarev(2, lower=5e-4)"])
    assert '"id":"zolotarev(2, lower=5e-4)"' in page
    assert page.count("<h1>") == 1
    assert not re.search(r"(?:src|href)=|url\(|@import|fetch\(|XMLHttp", page)
