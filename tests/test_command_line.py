"""The command as a whole: both forms of --set on every command that has it, versions, `python -m`, completion."""

from __future__ import annotations

import inspect
import re
import shutil
import subprocess
import sys
from functools import wraps
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

import inexact_muon
from inexact_muon_lab import cli
from inexact_muon_lab.errors import LabError
from inexact_muon_lab.spec import study
from inexact_muon_lab.spec.study import read_changes
from test_catalogue import run

WITH_SET = [name for name, command in cli.COMMANDS.items() if "set" in inspect.signature(command).parameters]

FORMS = {
    "after one": ["--set", "a=1", "b=x=y", "c=[1,2]"],
    "one after each": ["--set", "a=1", "--set", "b=x=y", "--set", "c=[1,2]"],
    "mixed": ["--set", "a=1", "b=x=y", "--set", "c=[1,2]"],
    "with equals": ["--set=a=1", "b=x=y", "--set=c=[1,2]"],
}


def test_the_commands_with_settings() -> None:
    assert set(WITH_SET) >= {"run", "sweep", "theory"}


@pytest.mark.parametrize("place", ["before", "after", "between"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("command", WITH_SET)
def test_settings_in_every_form(
    command: str, form: str, place: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is lost, and a positional argument may stand before, after or between them."""
    seen: dict[str, Any] = {}
    function = cli.COMMANDS[command]

    @wraps(function)
    def recorded(*args: Any, **options: Any) -> None:
        seen.update(inspect.signature(function).bind(*args, **options).arguments)

    monkeypatch.setitem(cli.COMMANDS, command, recorded)
    words = FORMS[form]
    cut = {"before": 0, "after": len(words), "between": max(k for k, w in enumerate(words) if w.startswith("--set"))}
    code, _, err = run(monkeypatch, capsys, command, *words[: cut[place]], "thing.toml", *words[cut[place] :])
    assert (code, err) == (0, "")
    assert seen["set"] == ("a=1", "b=x=y", "c=[1,2]")
    assert str(next(iter(seen.values()))) == "thing.toml"


def test_a_command_without_settings_has_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(monkeypatch, capsys, "plan", "gpt2-124m", "--set", "a=1")
    assert code != 0
    assert "--set" in out + err


def test_theory_evaluates_the_same_in_both_forms(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one = run(monkeypatch, capsys, "theory", "deterministic-optimal", "--set", "delta=0.3", "L=2", "K=50")
    each = run(
        monkeypatch, capsys, "theory", "deterministic-optimal", "--set", "delta=0.3", "--set", "L=2", "--set", "K=50"
    )
    assert one == each
    assert one[1].count("(assumed)") == 1
    lists = [run(monkeypatch, capsys, "theory", "layerwise-iterations", "--set", f"deltas={text}") for text in
             ("0.1,0.5,0.2", "[0.1,0.5,0.2]", "[0.1, 0.5, 0.2]")]  # fmt: skip
    assert lists[0][0] == 0
    assert lists[0] == lists[1] == lists[2]


STUDY = """
name = "some"
seeds = [0, 1]
[base]
steps = 3
problem = { name = "cnn", widths = [4, 4, 4] }
optimizer.name = "muon"
[[grid]]
optimizer.lr = [0.05, 0.1]
optimizer.polar = ["polar-express:1", "polar-express:5"]
"""


def planned(folder: Path, *settings: str, text: str = STUDY) -> study.StudyRuns:
    (folder / "study.toml").write_text(text)
    return study.load(folder / "study.toml", read_changes(settings))


def values(plan: study.StudyRuns, field: str) -> list[Any]:
    return list(dict.fromkeys(study.field_of(spec, field) for spec in plan.runs))


def test_a_list_takes_the_place_of_an_axis(tmp_path: Path) -> None:
    plan = planned(tmp_path, "optimizer.lr=[0.01,0.02,0.03]")
    assert values(plan, "optimizer.lr") == [0.01, 0.02, 0.03]
    assert len(plan.runs) == 3 * 2 * 2
    assert plan.varied == ("optimizer.lr", "optimizer.polar", "seed")


def test_a_list_makes_an_axis(tmp_path: Path) -> None:
    plan = planned(tmp_path, "optimizer.momentum=[0.5,0.9]", "optimizer.lr=0.1", "seed=[3,4,5]")
    assert values(plan, "optimizer.momentum") == [0.5, 0.9]
    assert (values(plan, "optimizer.lr"), values(plan, "seed")) == ([0.1], [3, 4, 5])
    assert len(plan.runs) == 2 * 2 * 3
    assert set(plan.varied) == {"optimizer.polar", "optimizer.momentum", "seed"}


def test_a_list_makes_an_axis_of_every_grid(tmp_path: Path) -> None:
    text = STUDY + "[[grid]]\noptimizer.momentum = [0.3]\n"
    plan = planned(tmp_path, "optimizer.lr=[0.01,0.02]", text=text)
    assert len(plan.runs) == (2 * 2 + 2) * 2
    assert values(plan, "optimizer.lr") == [0.01, 0.02]


def test_ids_are_those_of_the_written_study(tmp_path: Path) -> None:
    written = planned(tmp_path, text=STUDY.replace("[0.05, 0.1]", "[0.01, 0.02]"))
    assert planned(tmp_path, "optimizer.lr=[0.01, 0.02]").runs == written.runs


@pytest.mark.parametrize(
    ("setting", "expected"),
    [("[8,8,8]", [(8, 8, 8)]), ("[[8,8,8]]", [(8, 8, 8)]), ("[[8,8,8],[4,4,8]]", [(8, 8, 8), (4, 4, 8)])],
)
def test_a_field_that_is_a_list(tmp_path: Path, setting: str, expected: list[Any]) -> None:
    """One list is its value, a list of lists an axis."""
    assert values(planned(tmp_path, f"problem.widths={setting}"), "problem.widths") == expected


def test_lists_that_cannot_be_used_are_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(LabError, match=r"optimizer\.lr=\[\] has no value to try"):
        planned(tmp_path, "optimizer.lr=[]")
    with pytest.raises(LabError, match=r"optimizer\.lrr is not a field: did you mean 'lr'"):
        planned(tmp_path, "optimizer.lrr=[1,2]")
    (tmp_path / "run.toml").write_text('problem = { name = "cnn" }\noptimizer.name = "muon"\n')
    code, _, err = run(monkeypatch, capsys, "run", str(tmp_path / "run.toml"), "--set", "optimizer.lr=[0.1,0.2]")
    assert code == 2
    assert "lists are for `inexact-muon sweep`" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("words", [["-m", "inexact_muon"], ["-m", "inexact_muon_lab"]])
def test_version(words: list[str]) -> None:
    said = subprocess.run([sys.executable, *words, "--version"], capture_output=True, text=True, check=True).stdout
    assert said == f"inexact-muon {version('inexact-muon')}\n"
    assert inexact_muon.__version__ == version("inexact-muon")
    assert "__version__" in dir(inexact_muon)


def test_the_version_needs_no_torch() -> None:
    code = "import inexact_muon, sys; inexact_muon.__version__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_version_of_a_tree_that_is_not_installed() -> None:
    from importlib import metadata

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metadata, "version", lambda name: metadata.distribution("no-such-package"))
        assert inexact_muon.__version__ == "0+unknown"


def test_the_package_is_the_command() -> None:
    words = [sys.executable, "-m", "inexact_muon", "plan", "gpt2-124m", "--gpus", "8", "--tp", "3"]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (2, "inexact-muon: tp = 3 does not divide gpus = 8\n")


def test_help_names_every_command_with_its_first_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    code, out, _ = run(monkeypatch, capsys, "--help")
    assert code == 0
    for name, command in cli.COMMANDS.items():
        assert f"{name} {(command.__doc__ or '').partition(chr(10))[0]}" in " ".join(out.split())
    assert max(map(len, out.partition("commands:")[2].splitlines())) <= 40


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_prints_a_script(
    shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(monkeypatch, capsys, "--tyro-print-completion", shell)
    assert code == 0
    assert all(name in out for name in cli.COMMANDS)
    path = tmp_path / "script"
    assert run(monkeypatch, capsys, "--tyro-write-completion", shell, str(path))[0] == 0
    assert path.read_text().strip() == out.strip()
    if shutil.which(shell):
        assert subprocess.run([shell, "-n", str(path)], check=False).returncode == 0


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_completion_in_bash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Commands, then options: words of a help text of several lines would be offered as well."""
    script = run(monkeypatch, capsys, "--tyro-print-completion", "bash")[1]
    found = re.search(r"^complete -F (\w+) inexact-muon$", script, flags=re.MULTILINE)
    assert found

    def offered(*words: str) -> set[str]:
        array = " ".join(f"'{word}'" for word in words)
        ask = f"COMP_WORDS=({array}); COMP_CWORD={len(words) - 1}; {found[1]}; printf '%s\\n' \"${{COMPREPLY[@]}}\""
        done = subprocess.run(["bash", "-c", script + ask], capture_output=True, text=True, check=True)
        return set(done.stdout.split("\n")) - {""}

    assert offered("inexact-muon", "") == {*cli.COMMANDS, "-h", "--help"}
    for name, command in cli.COMMANDS.items():
        options = offered("inexact-muon", name, "--")
        assert all(option.startswith("--") for option in options), options
        if "set" in inspect.signature(command).parameters:
            assert "--set" in options


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_help_says_what_to_write(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(monkeypatch, capsys, name, "--help")
    assert code == 0
    assert "None" not in out
    assert not re.search(r"^│ \[?STR", out, flags=re.MULTILINE), "what stands without a name says what it is"
