"""The site: builds without a warning, needs no network, and its reference has every public name with a docstring."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

pytest.importorskip("mkdocs", reason="the site needs the extra `docs`")

from markdown import Markdown
from mkdocstrings import MkdocstringsInnerExtension

import test_public_api
from browsing import NEEDS_BROWSER, Seen, launched
from pages import ROOT, load_module

REFERENCE = load_module(ROOT / "docs/reference.py")
MATHML = load_module(ROOT / "docs/mathml.py")
TABLES = load_module(ROOT / "docs/tables.py")
ADDRESS = load_module(ROOT / "docs/address.py")
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


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("eta_k <= nu", ("<msub><mi>η</mi><mrow><mi>k</mi></mrow></msub>", "<mo>≤</mo>", "<mi>ν</mi>")),
        ("(0, 1]", (">(</mo>", ">]</mo>")),
        ("<m, d_hat>", ("⟨", "⟩", '<mover accent="true"><mi>d</mi>')),
        ("k<K", ("<mo>&lt;</mo>",)),
        ("|g|*", ("<mo>∗</mo>",)),
        ("sqrt(2 D0/K)", ("<msqrt>", "<msub><mi>D</mi><mn>0</mn></msub>")),
        ("E |xi^0|_2^2", ("<msubsup>",)),
        ("x^(-3/4)", ("<msup><mi>x</mi>", "<mo>−</mo>")),
        ("|g|*^2", ("<mrow><mo>∗</mo><mn>2</mn></mrow>",)),
        ("a <= b if c < 1", ("<mtext>&#160;if&#160;</mtext>",)),
    ],
)
def test_formulas_are_set(text: str, wanted: tuple[str, ...]) -> None:
    made = MATHML.mathml(text)
    assert made is not None
    ElementTree.fromstring(made)
    for part in wanted:
        assert part in made


@pytest.mark.parametrize(
    ("text", "sources"),
    [
        ("E_k <= |a + b|* (c + d) - L/2 x^2", ["E_k <=", "|a + b|* (c + d) -", "L/2 x^2"]),
        ("<m, d_hat> = -1", ["<m, d_hat> =", "-1"]),
        ("k < K", ["k < K"]),
        ("(1+delta)/(1-delta)", ["(1+delta)/(1-delta)"]),
    ],
)
def test_lines_are_broken_between_the_parts_of_a_formula(text: str, sources: list[str]) -> None:
    parts = MATHML.parts(text)
    assert [source for _, source in parts] == sources
    for row, _ in parts[:-1]:
        assert re.search(r'<mo form="infix">[^<]*</mo>$', row)


def test_a_long_bracket_is_broken_unless_something_applies_to_all_of_it() -> None:
    long = "D0/(K gamma) + c rho sigma (1-alpha)/alpha + L gamma nu/2"
    pieces = ["D0/(K gamma) +", "c rho sigma (1-alpha)/alpha +", "L gamma nu/2"]
    found = MATHML.parts(f"1/(1-eta) [{long}].", display=True)
    assert [source for _, source in found] == [f"1/(1-eta) [{pieces[0]}", pieces[1], f"{pieces[2]}]."]
    for row, _ in found:
        ElementTree.fromstring(f"<math>{row}</math>")
    assert 'minsize="2.4em">[</mo>' in found[0][0]
    assert 'minsize="2.4em">]</mo>' in found[-1][0]
    for whole in (f"[{long}]^2", f"[{long}]/K", f"phi({long})", "x [a + b]"):
        assert len(MATHML.parts(whole, display=True)) == 1, whole


def test_the_argument_of_a_function_keeps_its_brackets_over_a_number() -> None:
    shown = MATHML.mathml("L zeta(3/2)/2", display=True)
    assert "".join(ElementTree.fromstring(shown).itertext()) == "Lζ(32)/2"
    assert shown.count("<mfrac>") == 1, "3/2, and not (3/2)/2"


def test_names_in_tables_may_be_broken_where_they_read_well() -> None:
    table = "<table><tr><td><code>shaped(tau=0.01, x.y)</code></td></tr></table><p><code>a(b)</code></p>"
    shown = TABLES.on_page_content(table)
    assert '<code>shaped(<wbr>tau=<wbr class="phone">0.01, <wbr>x.<wbr>y)</code>' in shown
    assert "<code>a(b)</code>" in shown
    row = '<td style="text-align: right;">+0.0065 (+0.0025 to +0.0104) open</td><td style="text-align: right;">(1)</td>'
    estimate = '<td class="estimate" style="text-align: right;">+0.0065 <span>(+0.0025 to +0.0104)</span> open</td>'
    assert TABLES.on_page_content(f"<table>{row}</table>") == f"<table>{estimate}{row.partition('</td>')[2]}</table>"


def test_summaries_are_shown_as_they_are_written() -> None:
    assert "\\<" not in REFERENCE.page("inexact_muon_lab.theory")
    assert "&lt;=" in REFERENCE.page("inexact_muon_lab.theory")


@pytest.mark.parametrize("text", ["measured_bound", "lower", "momentum_init", "make docs", "a b(", "", "tests/x.py"])
def test_code_stays_code(text: str) -> None:
    assert MATHML.mathml(text) is None


def test_every_formula_of_the_theory_is_set_and_none_of_its_characters_is_lost() -> None:
    """Letters and digits of the source are those of the MathML, in order."""
    page = re.sub(r"```.*?```", "", (ROOT / "docs/theory.md").read_text(), flags=re.DOTALL)
    blocks = [line.strip() for line in page.splitlines() if line.startswith("    ")]
    assert len(blocks) >= 20
    known = MATHML.SYMBOLS | {"d_hat": "d"}
    for text in (*blocks, *re.findall(r"`([^`\n]+)`", page)):
        body = re.sub(r"\s*\([A-Z]\d\)$", "", text) if text in blocks else text
        for display in (True, False):
            made = MATHML.mathml(body, display)
            if made is None:
                assert text not in blocks, text
                continue
            shown = "".join(ElementTree.fromstring(made).itertext())
            words = re.findall(r"d_hat|[A-Za-z]+|\d+", re.sub(r"sqrt|\b(?:and)\b", "", body))
            wanted = "".join(known.get(word, word) for word in words)
            assert re.sub(r"[^\w∇∑∏∫∞ε∈]", "", shown) == re.sub(r"[^\w∇∑∏∫∞ε∈]", "", wanted), body
            if not display:  # a fraction drops the brackets around its parts
                for bracket in "])":
                    roots = body.count("sqrt(") if bracket == ")" else 0
                    assert shown.count(bracket) <= body.count(bracket) - roots


def test_the_address_is_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs/index.md").read_text()
    home = SimpleNamespace(file=SimpleNamespace(src_uri="index.md"))
    monkeypatch.delenv("REPOSITORY", raising=False)
    assert "(ADDRESS)" not in ADDRESS.on_page_markdown(text, home)
    monkeypatch.setenv("REPOSITORY", "https://example.org/x")
    assert "[Repository](https://example.org/x)" in ADDRESS.on_page_markdown(text, home)
    assert "git+https://example.org/x" in ADDRESS.on_page_markdown(text, home)


CUT = """() => [...document.querySelectorAll('article *')]
    .filter(e => e.checkVisibility() && e.getBoundingClientRect().right > 391)
    .filter(e => {
        for (let p = e.parentElement; p; p = p.parentElement) {
            if (['auto', 'scroll'].includes(getComputedStyle(p).overflowX)) { return false; }
        }
        return true;
    })
    .map(e => e.textContent.slice(0, 80))"""
"""What reaches over the right edge of a phone, and no box around it scrolls."""


SCROLLING = """() => [...document.querySelectorAll('article :is(.formula, .formula-inline)')]
    .filter(e => e.scrollWidth > e.clientWidth + 1)
    .map(e => e.textContent)"""
"""Formulas that scroll by themselves."""


@pytest.mark.slow
@NEEDS_BROWSER
def test_pages_fit_a_phone(site: Path) -> None:
    pytest.importorskip("playwright.sync_api")
    with launched() as browser:
        page = browser.new_context(viewport={"width": 390, "height": 844}, offline=True).new_page()
        for path in site.rglob("*.html"):
            page.goto(path.as_uri())
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, path.name
            assert page.evaluate(CUT) == [], path.name
            assert page.evaluate(SCROLLING) == [], path.name
        page.goto((site / "index.html").as_uri())
        assert page.locator("#doors + ul > li > a").count() == 4
        page.goto((site / "theory.html").as_uri())
        assert page.locator("math").count() > 300
        assert page.locator(".formula math").count() >= 20


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
    playwright = pytest.importorskip("playwright.sync_api")
    with launched() as opened:
        context = opened.new_context(offline=True)
        page = context.new_page()
        failed: list[str] = []
        page.on("requestfailed", lambda request: failed.append(request.url))
        for _ in range(5):  # what is typed before the scripts are ready is lost
            page.goto((site / "lab.html").as_uri())
            page.fill("input[name=query]", "zolotarev")
            with contextlib.suppress(playwright.TimeoutError):
                page.wait_for_function("document.querySelectorAll('.md-search-result__item').length >= 3", timeout=9000)
                break
        assert page.locator(".md-search-result__item").count() >= 3
        for words in ("learning rate", "tensorboard", "plot"):
            page.fill("input[name=query]", words)
            page.press("input[name=query]", "End")
            page.wait_for_selector(f".md-search-result__item a:has-text('{words}')", state="attached", timeout=60000)
        for name in CLIENTS:
            page.fill("input[name=query]", name)
            page.press("input[name=query]", "End")  # the search listens to keys
            found = f'.md-search-result__item a[href*="use-with.html#"]:has-text("{name}")'
            page.wait_for_selector(found, state="attached", timeout=60000)
        assert not failed
