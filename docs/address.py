"""The repository's address on the home page, from the environment: a clone does not know where it is published."""

import os
import re
from typing import Any

from mkdocs.structure.pages import Page

HOME = "index.md"


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Puts REPOSITORY, an https address, in place of ADDRESS; without it what needs one is left out."""
    if page.file.src_uri != HOME:
        return markdown
    address = os.environ.get("REPOSITORY", "")
    if address.startswith("https://"):
        return markdown.replace("ADDRESS", address)
    without = re.sub(
        r"^pip install .*ADDRESS.*\n|^The second line does the same without a clone\. ", "", markdown, flags=re.M
    )
    return re.sub(r" \[Repository\]\(ADDRESS\)\.", "", without)
