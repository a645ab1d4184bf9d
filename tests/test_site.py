"""The site: builds without a warning, needs no network, and its reference has every public name with a docstring."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

pytest.importorskip("mkdocs", reason="the site needs the extra `docs`")

from markdown import Markdown
from mkdocstrings import MkdocstringsInnerExtension

import test_public_api
from browsing import NEEDS_BROWSER, Seen, launched
from pages import ROOT, load_module

REFERENCE = load_module(ROOT / "docs/reference.py")
NAV = (ROOT / "mkdocs.yml").read_text()
CLIENTS = ("Trainer", "Lightning", "Accelerate", "timm", "LoRA", "EMA", "QK-clip", "KellerJordan", "dion")
"""Names under which people look for docs/use-with.md; each is in the title of one of its sections."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.parametrize("module", REFERENCE.MODULES)
def test_every_public_name_has_a_docstring(module: str) -> None:
    names = REFERENCE.public(module)
    assert names
    for name in names:
        assert inspect.getdoc(getattr(import_module(module), name)), f"{module}.{name}"


def test_every_public_module_has_a_page() -> None:
    assert {module.__name__ for module in test_public_api.MODULES} <= set(REFERENCE.MODULES)
    for module in REFERENCE.MODULES:
        assert f"reference/{module}.md" in NAV
    for module in test_public_api.MODULES:
        assert set(test_public_api.public(module)) <= set(REFERENCE.public(module.__name__))


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda p: str(p.relative_to(ROOT)))
def test_every_page_is_in_the_menu(page: Path) -> None:
    assert str(page.relative_to(ROOT / "docs")) in NAV, "add it to nav in mkdocs.yml"


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda p: str(p.relative_to(ROOT)))
def test_inner_products_in_pages_are_code(page: Path) -> None:
    """Markdown takes a bare <m, d> for a tag, and shows nothing."""
    text = re.sub(r"```.*?```|`[^`]*`|^ {4}[^\n]*|<!--.*?-->", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    assert not re.search(r"<[a-zA-Z]", text)


def test_docstrings_are_shown_as_they_are_written() -> None:
    """Angle brackets and asterisks are text there; HTML and emphasis stay what they are in pages."""
    text = "<m, d_hat> = -||m||*/(L0 + L1 ||m||*), `<x>`\n\n<m, d> first in a line"
    inner = Markdown(extensions=["toc", REFERENCE.PlainDocstrings(), MkdocstringsInnerExtension([])])
    shown = inner.convert(text)
    assert "&lt;m, d_hat&gt; = -||m||*/(L0 + L1 ||m||*), <code>&lt;x&gt;</code>" in shown
    assert "&lt;m, d&gt; first in a line" in shown
    code = Markdown(extensions=["fenced_code", "toc", REFERENCE.PlainDocstrings(), MkdocstringsInnerExtension([])])
    assert "&gt;&gt;&gt; 1 + 1\n2\n</code></pre>\n<p>after</p>" in code.convert("before\n>>> 1 + 1\n2\n\nafter")
    page = Markdown(extensions=[REFERENCE.PlainDocstrings()]).convert("<b>bold</b> and *this*\n\n<div>block</div>")
    assert page == "<p><b>bold</b> and <em>this</em></p>\n<div>block</div>"


@pytest.mark.slow
def test_names_have_one_entry_and_every_page_leads_to_it(site: Path) -> None:
    for module in REFERENCE.MODULES:
        page = (site / f"reference/{module}.html").read_text()
        for name in REFERENCE.public(module):
            where = REFERENCE.origin(module, name)
            home = REFERENCE.homes()[where]
            link = f"#{where}" if home == module else f"{home}.html#{where}"
            assert f'href="{link}"' in page, f"{module}.{name}"
            assert (f'id="{where}"' in page) == (home == module), f"{module}.{name}"


@pytest.mark.slow
def test_nothing_comes_from_the_network(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 25
    for page in pages:
        text = page.read_text()
        for tag in re.findall(r"<(?:script|link|img|iframe)[^>]*>", text):
            assert not re.search(r'(?:src|href)="(?:https?:)?//', tag), f"{page.name}: {tag}"
    for style in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(?:https?:)?//|@import", style.read_text()), style.name


@pytest.mark.slow
@NEEDS_BROWSER
@pytest.mark.parametrize("width", [1300, 390])
def test_the_explorer_is_drawn_and_follows_the_palette(site: Path, width: int) -> None:
    pytest.importorskip("playwright.sync_api")
    ink = "getComputedStyle(document.getElementById('x-finding')).color"
    with launched() as browser:
        seen = Seen(browser, site / "explorer.html", width)
        assert seen.page.locator("#x-plot polyline").count() == 3
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
        light = seen.page.evaluate(ink)
        seen.page.locator("label[for=__palette_1]").first.click()
        seen.page.wait_for_selector("body[data-md-color-scheme=slate]")
        assert seen.page.evaluate(ink) != light
        assert seen.said == []
        assert all(url.startswith(("file:", "data:", "blob:")) for url in seen.asked)


@pytest.mark.slow
@NEEDS_BROWSER
def test_search_works_from_a_file_without_a_network(site: Path) -> None:
    pytest.importorskip("playwright.sync_api")
    with launched() as opened:
        context = opened.new_context(offline=True)
        page = context.new_page()
        failed: list[str] = []
        page.on("requestfailed", lambda request: failed.append(request.url))
        for _ in range(5):  # what is typed before the scripts are ready is lost
            page.goto((site / "lab.html").as_uri())
            page.fill("input[name=query]", "zolotarev")
            page.wait_for_timeout(9000)
            if page.locator(".md-search-result__item").count():
                break
        assert page.locator(".md-search-result__item").count() >= 3
        for name in CLIENTS:
            page.fill("input[name=query]", name)
            page.press("input[name=query]", "End")  # the search listens to keys
            found = f'.md-search-result__item a[href*="use-with.html#"]:has-text("{name}")'
            page.wait_for_selector(found, state="attached", timeout=60000)
        assert not failed
