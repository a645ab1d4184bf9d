"""Training needs `inexact_muon`, torch and numpy alone; names of the lab that people type are the lab's own."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

EXTRAS = ("altair", "jinja2", "msgspec", "rich", "scipy", "sklearn", "tyro", "vl_convert")

WITHOUT_EXTRAS = f"""
import sys

class Hiding:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in {EXTRAS} else self.finder.find_spec(name, path, target)

sys.meta_path[:] = map(Hiding, sys.meta_path)
"""


def python(code: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-W", "error", "-c", WITHOUT_EXTRAS + textwrap.dedent(code)]
    return subprocess.run(words, check=False, capture_output=True, text=True)


@pytest.mark.parametrize("oracle", ["auto", "zolotarev(poles=3, power=-0.2)", "polar-express:5"])
def test_trains_resumes_and_explains_without_the_extras(oracle: str) -> None:
    done = python(f"""
        import torch
        from inexact_muon import Muon, advise, explain, transfer
        torch.manual_seed(0)
        model = torch.nn.Sequential(*(torch.nn.Linear(n, m) for n, m in ((8, 16), (16, 16), (16, 4))))
        make = lambda: Muon.for_model(model, lr=0.02, polar={oracle!r}, sample_every=1)
        optimizer = make()
        for _ in range(3):
            model(torch.randn(5, 8)).square().sum().backward()
            optimizer.step()
        again = make()
        again.load_state_dict(optimizer.state_dict())
        text = str(explain(again))
        assert "What each parameter gets" in text and "1.weight" in text, text
        assert str(advise(again))
        assert transfer(0.02, 0.95, "jordan:5", "polar-express:5").lr > 0
    """)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["Muon", "Scion", "measure", "explain"])
def test_training_loads_nothing_of_the_lab(name: str) -> None:
    done = python(f"import inexact_muon; inexact_muon.{name}; sys.exit(any('_lab' in m for m in sys.modules))")
    assert done.returncode == 0, done.stderr


def test_the_command_says_what_to_install() -> None:
    done = python("from inexact_muon.__main__ import main; main()")
    assert done.returncode == 1
    assert done.stderr.strip() == ("inexact-muon: the command needs the extra `cli`: pip install 'inexact-muon[cli]'")


@pytest.mark.parametrize("name", ["theory", "tune", "lab.problems"])
def test_both_names_are_one_module(name: str) -> None:
    done = python(f"""
        import importlib
        typed = importlib.import_module("inexact_muon.{name}")
        lab = importlib.import_module("inexact_muon_lab.{name.removeprefix("lab.")}")
        assert typed is lab
    """)
    assert done.returncode == 0 or "msgspec" in done.stderr, done.stderr
