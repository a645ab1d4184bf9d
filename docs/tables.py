"""Where a name or an oracle in a table may be broken on a phone: after a bracket, a comma, an equals sign, a dot or an
underscore, and before a closing bracket never."""

import re
from typing import Any

TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
CODE = re.compile(r"(<code[^>]*>)([^<]*)(</code>)")
PLACE = re.compile(r"(?<=[(,=_./])(?=[^\s)])")


def _code(match: re.Match[str]) -> str:
    return match[1] + PLACE.sub("<wbr>", match[2]) + match[3]


def on_page_content(html: str, **_: Any) -> str:
    """Marks these places in every table of the page; called by mkdocs."""
    return TABLE.sub(lambda table: CODE.sub(_code, table[0]), html)
