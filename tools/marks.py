"""Tables between the marks of a page."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Mapping
from pathlib import Path


def between(page: str, parts: Mapping[str, str], command: str) -> str:
    """The page with each part between its marks, which name the command that makes it."""
    for name, text in parts.items():
        before, after = f"<!-- {name}: {command} -->\n", f"<!-- end of {name} -->"
        if page.count(before) != 1 or page.count(after) != 1:
            raise SystemExit(f"the page must have {before.strip()} and {after} once")
        head, rest = page.split(before)
        page = head + before + text + after + rest.split(after)[1]
    return page


def page_file(word: str) -> Path:
    """The type of an argument that names a page to write into."""
    if not Path(word).is_file():
        raise ArgumentTypeError(f"{word}: no such page")
    return Path(word)
