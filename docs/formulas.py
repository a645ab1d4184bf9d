"""Formulas of pages as MathML (`mathml.py`); nothing is loaded from a network.

In the pages of `PAGES` code that consists of mathematical symbols alone is typeset when the site is built; names of
functions stay code.
"""

import re
from html import unescape
from typing import Any

from mathml import LONGEST, element, parts
from mkdocs.structure.pages import Page

PAGES = ("theory.md", "concepts.md", "curvature.md")

BLOCK = re.compile(r'<div class="highlight"><pre>(?:<span></span>)?<code>(.*?)</code></pre></div>', re.DOTALL)
INLINE = re.compile(r"(\(?)<code>([^<\n]*)</code>([.,;:)]*)")
"""With the punctuation around it, which stays on its line."""


def _block(match: re.Match[str]) -> str:
    lines = [unescape(re.sub(r"<[^>]*>", "", line)) for line in match[1].strip("\n").split("\n")]
    rows = []
    for line in lines:
        text, number = re.fullmatch(r"(.*?)\s*(\([A-Z]\d\))?", line.strip()).groups()  # type: ignore[union-attr]
        made = parts(text, True)
        if not made:
            return match[0]
        formula = "<wbr>".join(element(row, source, True) for row, source in made)
        rows.append(f"<div><span>{formula}</span>{f'<span>{number}</span>' if number else ''}</div>")
    return f'<div class="formula" tabindex="0">{"".join(rows)}</div>'


def _inline(match: re.Match[str]) -> str:
    before, source, after = match.groups()
    made = [_fitting(row, text) for row, text in parts(unescape(source))]
    if not made:
        return match[0]
    made[0] = before + made[0]
    made[-1] += after
    return "<wbr>".join(f'<span class="formula-part">{part}</span>' for part in made)


def _fitting(row: str, text: str) -> str:
    """In a box that scrolls if it may be wider than a phone."""
    made = element(row, text)
    return made if len(text) <= LONGEST else f'<span class="formula-inline">{made}</span>'


def on_page_content(html: str, page: Page, **_: Any) -> str:
    """Sets the formulas of a page; called by mkdocs."""
    if page.file.src_uri not in PAGES:
        return html
    html = BLOCK.sub(_block, html)
    return INLINE.sub(_inline, html)
