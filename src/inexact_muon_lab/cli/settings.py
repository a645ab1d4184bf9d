"""Types of options that several commands share: `--set field=value ...`, files and counts that may be left out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

Settings = Annotated[tuple[str, ...], tyro.conf.UseAppendAction]
"""`--set a=1 b=2`, `--set a=1 --set b=2`, or both: see `separate_settings`."""

File = Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")]
Folder = Annotated[Path | None, tyro.conf.arg(metavar="DIR", help_behavior_hint="")]
Number = Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint="")]
Word = Annotated[str | None, tyro.conf.arg(metavar="TEXT", help_behavior_hint="")]
"""Options that may be left out; help shows what to write, and no "None"."""


def separate_settings(words: Sequence[str]) -> list[str]:
    """`--set a=1 b=2` as `--set a=1 --set b=2`: words with an equals sign after a setting are settings, too."""
    separated: list[str] = []
    setting = False
    for word in words:
        if setting and separated[-1] != "--set" and not word.startswith("-"):
            if "=" in word:
                separated.append("--set")
            else:
                setting = False
        elif word.startswith("-"):
            setting = word == "--set" or word.startswith("--set=")
        separated.append(word)
    return separated
