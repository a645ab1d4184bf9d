"""Packages that not everybody needs."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from inexact_muon.lab.errors import LabError


def require(module: str, extra: str) -> Any:
    """A module of an optional package, or one sentence that says how to install it."""
    try:
        return import_module(module)
    except ModuleNotFoundError:
        package = module.partition(".")[0]
        raise LabError(f"this needs {package}: pip install 'inexact-muon[{extra}]'") from None
