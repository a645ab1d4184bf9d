"""Optional packages, and what needs them."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from inexact_muon._text import nearest
from inexact_muon_lab.errors import LabError

FORMATS = (".svg", ".png", ".html", ".json")
"""Suffixes of files that altair writes."""


def require(module: str, extra: str) -> Any:
    """Import a module of an optional package, or raise with the command that installs it."""
    try:
        return import_module(module)
    except ModuleNotFoundError:
        package = module.partition(".")[0]
        raise LabError(f"this needs {package}: pip install 'inexact-muon[{extra}]'") from None


def check_picture(path: Path) -> None:
    """Raise if `--plot` cannot write to a file of this name."""
    if path.suffix not in FORMATS:
        raise ValueError(f"--plot writes {', '.join(FORMATS)}, got {path.name!r}: {nearest(path.suffix, FORMATS)}")
