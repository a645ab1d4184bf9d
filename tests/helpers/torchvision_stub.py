"""Stand-ins for torchvision and Pillow, so that timm's models can be built where neither is installed.

timm imports both for transforms of images and for one frozen normalisation layer; its models compute without them.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from torch import nn

STUBBED = ("torchvision", "PIL")


class _Permissive(type):
    """A class that has every attribute, each such a class again."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Permissive(name, (), {})


class _Module(ModuleType):
    """A module that has every public name."""

    __version__ = "99.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return nn.BatchNorm2d if name == "FrozenBatchNorm2d" else _Permissive(name, (), {})


class _Finder(MetaPathFinder, Loader):
    """Finds the stubbed packages and everything below them."""

    def __init__(self, packages: tuple[str, ...]) -> None:
        self.packages = packages

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.split(".")[0] in self.packages else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def import_timm() -> Any:
    """timm, with stand-ins for what is not installed while it is imported; raises ImportError without timm itself."""
    if "timm" not in sys.modules:
        missing = tuple(name for name in STUBBED if importlib.util.find_spec(name) is None)
        finder = _Finder(missing)
        sys.meta_path.append(finder)
        try:
            import timm  # noqa: F401
        finally:
            sys.meta_path.remove(finder)
            for name in [name for name in sys.modules if name.split(".")[0] in missing]:
                del sys.modules[name]
    return sys.modules["timm"]
