"""Pictures of the demo's page for the README: `inexact-muon demo`, then this. Needs chromium and playwright."""

import os
import shutil
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).parent.parent
OUT = ROOT / "docs" / "figures"


def main(page_file: Path = ROOT / "runs" / "demo" / "report.html") -> None:
    with sync_playwright() as driver:
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=options)

        def show(scheme: str) -> Page:
            page = browser.new_context(viewport={"width": 1200, "height": 1180}, color_scheme=scheme).new_page()
            page.goto(page_file.resolve().as_uri())
            page.wait_for_selector("body[data-drawn=yes]")
            return page

        show("light").screenshot(path=OUT / "report.png")
        show("dark").locator("#heatmaps").screenshot(path=OUT / "report-dark.png")
        browser.close()


if __name__ == "__main__":
    main()
