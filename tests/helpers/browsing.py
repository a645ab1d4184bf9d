"""A page in a real browser, and what it said and asked for."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next((path for name in NAMES if (path := shutil.which(name))), None)
NEEDS_BROWSER = pytest.mark.skipif(BROWSER is None, reason="no browser on this machine: apt-get install chromium")


@contextmanager
def launched() -> Iterator[Any]:
    """A browser, closed afterwards."""
    from playwright import sync_api

    with sync_api.sync_playwright() as driver:
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        started = driver.chromium.launch(executable_path=BROWSER, args=options)
        yield started
        started.close()


class Seen:
    """A page without a network; `words` follow its address."""

    def __init__(
        self, browser: Any, path: Path, width: int = 1200, scheme: str = "light", height: int = 800, words: str = ""
    ) -> None:
        self.context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, offline=True
        )
        self.page = self.context.new_page()
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(path.as_uri() + words)
        self.page.wait_for_selector("body[data-drawn=yes]", timeout=120_000)

    def clean(self, path: Path) -> None:
        assert self.said == []
        asked = {url.partition("#")[0] for url in self.asked if not url.startswith(("data:", "blob:"))}
        assert asked == {path.as_uri()}
