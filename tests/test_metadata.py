"""What repositories show about the project is true: citation, version, templates, log, dependencies."""

from __future__ import annotations

import datetime
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


@pytest.mark.data
def test_the_changelog_starts_with_this_version() -> None:
    first = re.search(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert first
    assert re.fullmatch(rf"{re.escape(PROJECT['version'])} \((unreleased|\d{{4}}-\d\d-\d\d)\)", first[1])


def test_templates_are_forms() -> None:
    found = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))
    assert found
    for path in found:
        form = yaml.safe_load(path.read_text())
        assert {"name", "description", "body"} <= set(form), path.name
        ids = [part["id"] for part in form["body"]]
        assert len(set(ids)) == len(ids)
        for part in form["body"]:
            assert part["type"] in ("textarea", "checkboxes", "input", "dropdown", "markdown")
            assert part["attributes"]["label"]


@pytest.mark.data
def test_the_log_is_dated_and_names_its_files() -> None:
    log = (ROOT / "studies/LOG.md").read_text()
    dates = [datetime.date.fromisoformat(d) for d in re.findall(r"^## (\S+) · ", log, flags=re.MULTILINE)]
    assert dates == sorted(dates, reverse=True)
    entries = re.split(r"^## ", log, flags=re.MULTILINE)[1:]
    for entry in entries:
        named = re.findall(r"`((?:docs|benchmarks|studies|tests)/[\w./-]+)`", entry)
        assert named, entry
        for name in named:
            assert (ROOT / name).exists(), name


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
    assert targets == set(re.findall(r"^make (.*)$", (ROOT / ".ci/run").read_text(), flags=re.MULTILINE))
    versions = [step["with"]["python-version"] for step in job["steps"] if "setup-python" in step.get("uses", "")]
    assert versions == [PROJECT["requires-python"].removeprefix(">=")]


def test_hooks_before_a_commit_download_nothing() -> None:
    for repository in yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]:
        assert repository["repo"] == "local"
        assert {hook["language"] for hook in repository["hooks"]} == {"system"}
        assert all(hook["entry"].startswith(".venv/bin/") for hook in repository["hooks"])
