"""What docs/cotuning.md says is what the code and the committed tables say."""

import re

import pytest

from inexact_muon import polar, transfer
from inexact_muon_lab.tune.rules import RULES
from inexact_muon_lab.tune.spectra import SHIPPED, gaussian, labels, load
from pages import ROOT, load_module

PAGE = (ROOT / "docs/cotuning.md").read_text()


TABLES = load_module(ROOT / "studies/cotuning_tables.py")


def test_rules_are_those_of_the_code() -> None:
    for rule in RULES.values():
        assert f"| `{rule.name}` | {rule.lr} | {rule.alpha} |" in PAGE


def test_names_are_shipped() -> None:
    named = set(re.findall(r"`((?:gpt|cnn)-\w+)`", PAGE))
    assert named == {label for label in labels(load(SHIPPED)) if "/" not in label}


def test_committed_tables_are_what_the_study_writes() -> None:
    assert (ROOT / "docs/figures/cotuning.md").read_text() == TABLES.markdown()


def test_the_picture_can_be_drawn() -> None:
    pytest.importorskip("altair", reason="the picture needs the extra `lab`")
    drawn = TABLES.figure().to_json()
    assert "zolotarev:1" in drawn
    assert "cnn-mid" in drawn


def test_claims_about_rules() -> None:
    rows = TABLES.carried()

    def factors(rule: str, targets: tuple[str, ...], spectra: tuple[str, ...]) -> list[float]:
        wanted = [r for r in rows if r["rule"] == rule and r["target"] in targets and r["spectrum"] in spectra]
        return [round(r["lr factor"], 2) for r in wanted]

    few, real = tuple(f"polar-express:{k}" for k in (1, 2, 3)), ("gpt-early", "gpt-late", "cnn-late")
    low, high = min(factors("measured", few, real)), max(factors("measured", few, real))
    assert f"`measured` asks for {low:.2f} to {high:.2f}" in PAGE
    low, high = min(factors("descent", few, real)), max(factors("descent", few, real))
    assert f"`descent` for {low:.2f} to {high:.2f}" in PAGE
    assert set(factors("paper", TABLES.TARGETS, ("gpt-early", "gpt-late"))) == {1.0}


def test_claim_about_normalisers() -> None:
    found = []
    for norm in ("schatten4", "frobenius"):
        pair = (polar.PolarExpress(k, normalise=norm) for k in (5, 1))
        found.append(transfer(1.0, 0.9, *pair, "descent", gaussian(1024)).lr_factor)
    assert f"goes from {found[0]:.2f} to {found[1]:.2f}" in PAGE


def test_claims_about_lower_and_layers() -> None:
    worst = TABLES.worst_factors("gpt-late")
    three, five, plain = worst[3, 0.03], worst[5, 0.001], worst[3, 0.001]
    assert f"factor of {three:.3f} with `polar-express(steps=3, lower=0.03)` and {five:.3f}" in PAGE
    assert f"{plain:.3f} with `polar-express(steps=3)`" in PAGE
