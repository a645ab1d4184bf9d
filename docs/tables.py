"""Where a cell of a table may be broken.

A name or an oracle: after a bracket, a comma, an underscore or the dot of a module, on a phone also after an equals
sign, and before a closing bracket never. A number with its interval: before the interval and after it.
"""

import re
from typing import Any

TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
CODE = re.compile(r"(<code[^>]*>)([^<]*)(</code>)")
PLACE = re.compile(r"(?:(?<=[(,_/])|(?<=, )|(?<=\.)(?!\d))(?=[^\s)])")
EQUALS = re.compile(r"(?<==)(?=[^\s)])")
ESTIMATE = re.compile(r'<td( style="text-align: right;">[^<(]*)(\([-+.\d]+ to [-+.\d]+\))')


def _code(match: re.Match[str]) -> str:
    return match[1] + EQUALS.sub('<wbr class="phone">', PLACE.sub("<wbr>", match[2])) + match[3]


def _estimate(match: re.Match[str]) -> str:
    return f'<td class="estimate"{match[1]}<span>{match[2]}</span>'


def on_page_content(html: str, **_: Any) -> str:
    """Marks these places in every table of the page; called by mkdocs."""
    return TABLE.sub(lambda table: ESTIMATE.sub(_estimate, CODE.sub(_code, table[0])), html)
