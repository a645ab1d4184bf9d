"""The option `--set field=value ...` of several commands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import tyro

Settings = Annotated[tuple[str, ...], tyro.conf.UseAppendAction]
"""`--set a=1 b=2`, `--set a=1 --set b=2`, or both: see `separate_settings`."""


def separate_settings(words: Sequence[str]) -> list[str]:
    """`--set a=1 b=2` as `--set a=1 --set b=2`: words with an equals sign after a setting are settings, too."""
    found: list[str] = []
    setting = False
    for word in words:
        if setting and found[-1] != "--set" and not word.startswith("-"):
            if "=" in word:
                found.append("--set")
            else:
                setting = False
        elif word.startswith("-"):
            setting = word == "--set" or word.startswith("--set=")
        found.append(word)
    return found
