"""What repositories show about the project is true: citation, version, templates, log, dependencies."""

from __future__ import annotations

import re
import tomllib

import pytest

from pages import ROOT

yaml = pytest.importorskip("yaml")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CORE = {"torch", "numpy"}
COMMAND = {"tyro", "msgspec", "rich", "scipy"}
"""What `inexact-muon` needs beside them."""


@pytest.mark.data
def test_the_citation_names_this_version_and_the_paper() -> None:
    read = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert read["cff-version"] == "1.2.0"
    assert {"message", "title", "authors", "type", "license"} <= set(read)
    assert str(read["version"]) == PROJECT["version"]
    assert read["license"] == PROJECT["license"]
    paper = read["preferred-citation"]
    names = [author["family-names"] for author in paper["authors"]]
    assert names == ["Shulgin", "Alrashed", "Orabona", "Richtárik"]
    assert "2510.19933" in paper["journal"]
    assert paper["title"] in (ROOT / "README.md").read_text().replace("{Muon}", "Muon")


def test_core_dependencies_are_few() -> None:
    assert names(PROJECT["dependencies"]) == CORE
    extras = PROJECT["optional-dependencies"]
    assert names(extras["cli"]) == COMMAND
    assert set(extras["cli"]) < set(extras["lab"])


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[<>=]", requirement)[0] for requirement in requirements}


def test_what_the_set_up_installs_is_pinned() -> None:
    pinned = {line.split("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}
    for extra in ("lab", "safetensors", "clients", "docs", "dev"):
        for dependency in PROJECT["optional-dependencies"][extra]:
            assert re.split(r"[<>=]", dependency)[0] in pinned, dependency


def test_the_list_of_tests_is_complete() -> None:
    """tests/README.md has a row for each file, and none for a file that is not there."""
    listed = re.findall(r"^\| `([\w./]+)` \|", (ROOT / "tests/README.md").read_text(), flags=re.MULTILINE)
    helpers = [p.name + "/" * p.is_dir() for p in (ROOT / "tests/helpers").iterdir() if p.name != "__pycache__"]
    assert sorted(listed) == sorted([*(p.name for p in (ROOT / "tests").glob("test_*.py")), *helpers])


def test_the_workflow_runs_what_ci_runs() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
    (job,) = jobs.values()
    targets = {target for row in job["strategy"]["matrix"]["targets"] for target in row.split()}
    typed = re.findall(r"^make (?:--jobs 2 --output-sync )?(.*)$", (ROOT / ".ci/run").read_text(), flags=re.MULTILINE)
    assert targets == {target for line in typed for target in line.split()}
    versions = [step["with"]["python-version"] for step in job["steps"] if "setup-python" in step.get("uses", "")]
    assert versions == [PROJECT["requires-python"].removeprefix(">=")]
