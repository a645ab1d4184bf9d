"""Pictures of the demo's page for the README: `inexact-muon demo`, then this (PAGE). Needs chromium and playwright."""

import os
import shutil
import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).parent.parent
OUT = ROOT / "docs" / "figures"


def main(page_file: Path = ROOT / "runs" / "demo" / "report.html") -> None:
    with sync_playwright() as driver:
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=options)

        def show(scheme: str, width: int = 1300, height: int = 1300, opened: str = "") -> Page:
            page = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme).new_page()
            page.goto(page_file.resolve().as_uri() + opened)
            page.wait_for_selector("body[data-drawn=yes]")
            if opened:
                page.wait_for_selector(f"{opened} .chart svg")
            return page

        show("light").screenshot(path=OUT / "report.png")
        show("light", 390, 844).screenshot(path=OUT / "report-phone.png")
        show("dark", opened="#heatmaps").locator("#heatmaps").screenshot(path=OUT / "report-dark.png")
        browser.close()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
