"""Names that are imported when they are first used, so that training loads what it needs."""

from __future__ import annotations

import sys
from collections import UserDict
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, modules: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package (PEP 562).

    Args:
        modules: module -> names of the package that are defined there.
    """
    origins = {name: module for module, names in modules.items() for name in names}

    def lookup(name: str) -> Any:
        if name not in origins:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(origins[name]), name)
        setattr(sys.modules[package], name, value)  # looked up once: `step` must not come here
        return value

    return lookup, lambda: sorted({*vars(sys.modules[package]), *origins})


class Classes(UserDict[str, Any]):
    """Name -> class, to read texts with; "module:Class" stands for a class that is imported when it is looked up."""

    def __getitem__(self, name: str) -> Any:
        if isinstance(self.data[name], str):
            module, _, attribute = self.data[name].partition(":")
            self.data[name] = getattr(import_module(module), attribute)
        return self.data[name]
