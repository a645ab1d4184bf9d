"""Were a number or an operator of `theory` wrong, the checks of its formulas would notice."""

from collections.abc import Callable
from types import CodeType, ModuleType

import pytest

from theory_checks import CHECKS
from theory_mutants import load, mutants, sources

SOURCES = sources()
CODES: dict[str, CodeType] = {name: compile(text, f"{name}.py", "exec") for name, text in SOURCES.items()}

EQUIVALENT = {
    "_base.check: 1e-09 -> 1.1000000000000001e-09": "slack for rounding",
    "_base.aligned: 1 -> 1.1": "compared with a number of shapes",
    "error_model.polar_express_steps: 1e-12 -> 1.1000000000000002e-12": "slack for rounding",
    "stochastic.stochastic_iterations: 1.0 -> 1.1": "upper end of the bracket of a root",
    "stochastic.stochastic_iterations: 1e-300 -> 1.1000000000000002e-300": "tolerance of a root",
    "stochastic.stochastic_iterations: 1e-14 -> 1.1e-14": "tolerance of a root",
    "measured_stochastic.measured_stochastic_iterations: 1.0 -> 1.1": "lower end of the bracket of a root",
    "measured_stochastic.measured_stochastic_iterations: 100.0 -> 110.00000000000001": "upper end of it",
    "measured_stochastic.measured_stochastic_iterations: 1e-10 -> 1.1000000000000001e-10": "tolerance of a root",
    "stochastic.smallest: 1e-10 -> 1.1000000000000001e-10": "tolerance of a search",
}
"""Mutants that change nothing that is promised, and why."""


def survives(codes: dict[str, CodeType], checks: list[Callable[[ModuleType], None]]) -> bool:
    """Runs the checks on a mutant; one that kills goes to the front, as it is likely to kill the next one too."""
    killers = (Exception, pytest.fail.Exception)  # the second is that of a missing pytest.raises, a BaseException
    try:
        copy = load(codes)
    except killers:
        return False
    for check in checks:
        try:
            check(copy)
        except killers:
            checks.insert(0, checks.pop(checks.index(check)))
            return False
    return True


def test_an_unchanged_copy_passes() -> None:
    """So that a mutant dies of its mutation."""
    copy = load(CODES)
    for check in CHECKS:
        check(copy)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SOURCES if not name.startswith("__")])
def test_no_mutant_survives(name: str) -> None:
    checks = list(CHECKS)
    survivors = [m.where for m in mutants(name, SOURCES[name]) if survives({**CODES, name: m.code}, checks)]
    unexplained = [where for where in survivors if where not in EQUIVALENT]
    assert not unexplained, "\n".join(unexplained)


@pytest.mark.slow
def test_there_are_many_and_the_equivalent_ones_exist() -> None:
    made = [m.where for name, text in SOURCES.items() for m in mutants(name, text)]
    assert len(made) > 400
    assert set(EQUIVALENT) <= set(made)
