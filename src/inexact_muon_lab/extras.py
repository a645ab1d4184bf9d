"""Optional packages."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from inexact_muon_lab.errors import LabError


def require(module: str, extra: str) -> Any:
    """Import a module of an optional package, or raise with the command that installs it."""
    try:
        return import_module(module)
    except ModuleNotFoundError:
        package = module.partition(".")[0]
        raise LabError(f"this needs {package}: pip install 'inexact-muon[{extra}]'") from None
