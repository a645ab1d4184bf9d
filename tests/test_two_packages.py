"""Training needs `inexact_muon`, torch and numpy alone; names of the lab that people type are the lab's own."""

from __future__ import annotations

import importlib
import subprocess
import sys
import textwrap

from inexact_muon_lab import problems

MOST_FILES = 45
"""Files of the package that `inexact_muon.Muon` may load."""

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


def test_trains_resumes_and_explains_without_the_extras() -> None:
    done = python("""
        import torch
        from inexact_muon import Muon, advise, explain, transfer
        for oracle in ("auto", "zolotarev(poles=3, power=-0.2)", "polar-express:5"):
            torch.manual_seed(0)
            model = torch.nn.Sequential(*(torch.nn.Linear(n, m) for n, m in ((8, 16), (16, 16), (16, 4))))
            make = lambda: Muon.for_model(model, lr=0.02, polar=oracle, sample_every=1)
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


def test_training_loads_nothing_of_the_lab() -> None:
    done = python("""
        from inexact_muon import EF21Muon, Muon, Scion, explain, measure
        print([m for m in sys.modules if "_lab" in m])
    """)
    assert done.stdout == "[]\n", done.stderr


def test_the_optimizer_loads_few_files() -> None:
    done = python("""
        import inexact_muon
        inexact_muon.Muon
        print(*sorted(name for name in sys.modules if name.partition(".")[0] == "inexact_muon"))
    """)
    assert len(done.stdout.split()) <= MOST_FILES, done.stdout


def test_the_command_says_what_to_install() -> None:
    done = python("from inexact_muon.__main__ import main; main()")
    assert done.returncode == 1
    assert done.stderr.strip() == ("inexact-muon: the command needs the extra `cli`: pip install 'inexact-muon[cli]'")


def test_both_names_are_one_module() -> None:
    done = python("""
        import inexact_muon.theory, inexact_muon.tune, inexact_muon_lab.theory, inexact_muon_lab.tune
        assert inexact_muon.theory is inexact_muon_lab.theory
        assert inexact_muon.tune is inexact_muon_lab.tune
    """)
    assert done.returncode == 0, done.stderr
    assert importlib.import_module("inexact_muon.lab.problems") is problems
