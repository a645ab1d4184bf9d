"""The page in a real browser: every chart has marks, nothing is fetched, nothing is logged, it fits a phone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("altair", reason="the report needs the extra `lab`")
pytest.importorskip("playwright.sync_api", reason="no playwright: pip install playwright")

from browsing import NEEDS_BROWSER, Seen, launched
from inexact_muon_lab.cli import catalogue
from inexact_muon_lab.report.build import build
from inexact_muon_lab.report.claims import CLAIMS
from report_cases import Case, grid, write
from test_report_pages import everything
from test_report_rows import add_reference

pytestmark = [pytest.mark.slow, NEEDS_BROWSER]
MARKS = "g.mark-symbol.role-mark path, g.mark-rect.role-mark path"
"""Dots and cells: every chart has one or the other."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launched() as started:
        yield started


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stores")
    catalogue.save(catalogue.rows(), folder)
    add_reference(everything(folder), "lent")
    return build(folder, pictures=False).page


OPEN = """() => {
    document.querySelectorAll('details.section, .others').forEach(part => { part.open = true; });
}"""
DRAWN = "() => [...document.querySelectorAll('.chart')].every(chart => chart.dataset.drawn === 'yes')"


def unfolded(browser: Any, path: Path, width: int = 1200, scheme: str = "light", height: int = 800) -> Seen:
    """The page with all sections open and every chart drawn."""
    seen = Seen(browser, path, width, scheme, height)
    seen.page.evaluate(OPEN)
    seen.page.wait_for_function(DRAWN, timeout=120_000)
    return seen


@pytest.mark.parametrize("width", [1300, 390])
def test_the_page_is_short_until_a_section_is_opened(browser: Any, page_file: Path, width: int) -> None:
    seen = Seen(browser, page_file, width)
    assert seen.page.evaluate("document.documentElement.scrollHeight") < 8000
    closed = seen.page.locator("#convergence-0")
    assert closed.locator("svg").count() == 0
    seen.page.locator("nav a", has_text="The paper's figures").click()
    closed.locator("svg").wait_for()
    seen.clean(page_file)
    seen.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_chart_has_marks(browser: Any, page_file: Path, scheme: str) -> None:
    seen = unfolded(browser, page_file, scheme=scheme)
    charts = seen.page.query_selector_all(".chart")
    assert len(charts) >= 20
    assert {"theory-0", "co-tuning-0", "co-tuning-2"} <= {c.get_attribute("id") for c in charts}
    for chart in charts:
        name = chart.get_attribute("id")
        drawn = [mark for mark in chart.query_selector_all(MARKS) if mark.bounding_box()]
        assert drawn, f"{name} has no marks"
        boxes = [mark.bounding_box() for mark in drawn]
        assert max(box["width"] + box["height"] for box in boxes) > 3, f"{name} draws only points"
    seen.clean(page_file)
    seen.context.close()


def test_colours_follow_the_scheme(browser: Any, page_file: Path) -> None:
    seen = unfolded(browser, page_file)
    back = "getComputedStyle(document.body).backgroundColor"
    ink = "document.querySelector('#convergence-0 .role-axis-label text').getAttribute('fill')"
    light = seen.page.evaluate(back), seen.page.evaluate(ink)
    seen.page.emulate_media(color_scheme="dark")
    seen.page.wait_for_function(f"{ink} !== '{light[1]}'")
    dark = seen.page.evaluate(back), seen.page.evaluate(ink)
    assert light[0] != dark[0]
    assert light[1] != dark[1]
    seen.clean(page_file)
    seen.context.close()


TIPS = {
    "#convergence-0": "iterations",
    "#heatmaps-0": "momentum",
    "#layers-0": "layer",
    "#layers-1": "step",
    "#theory-0": "Theorem",
    "#co-tuning-0": "Polar Express, 1 iteration",
    "#co-tuning-1": "Polar Express, ",
}
"""What is said at the third mark."""


def test_tooltips(browser: Any, page_file: Path) -> None:
    seen = unfolded(browser, page_file)
    for chart, word in TIPS.items():
        place = seen.page.locator(chart)
        place.scroll_into_view_if_needed()
        place.locator(MARKS).nth(2).hover(force=True)
        tip = seen.page.locator("#vg-tooltip-element.visible")
        tip.wait_for(timeout=10_000)
        assert word in tip.inner_text()
        seen.page.mouse.move(0, 0)
    seen.clean(page_file)
    seen.context.close()


CUT = """[...document.querySelectorAll('.chart')].flatMap(chart => {
    const room = chart.querySelector('svg').getBoundingClientRect();
    return [...chart.querySelectorAll('.role-legend-label text, .role-axis-label text, .role-axis-title text')]
        .filter(e => e.textContent && getComputedStyle(e).opacity > 0)
        .map(e => [e.textContent, e.getBoundingClientRect()])
        .filter(([_, box]) => box.left < room.left - 1 || box.right > room.right + 1)
        .map(([text, _]) => `${chart.id}: ${text}`);
})"""
"""Words of charts that reach over the edge."""


def test_fits_a_phone(browser: Any, page_file: Path) -> None:
    seen = unfolded(browser, page_file, width=360)
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= 360
    for chart in seen.page.query_selector_all(".chart svg"):
        box = chart.bounding_box()
        assert box
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 361
    sizes = seen.page.evaluate(
        "[...document.querySelectorAll('main p, main td, main li, main button, .chart text')]"
        ".filter(e => e.textContent.trim()).map(e => parseFloat(getComputedStyle(e).fontSize))"
    )
    assert min(sizes) >= 11
    assert seen.page.evaluate(CUT) == []
    seen.clean(page_file)
    seen.context.close()


@pytest.mark.parametrize(("width", "height", "wanted"), [(1300, 800, 5), (390, 844, 4)])
def test_the_first_screen_has_findings_advice_and_a_picture(
    browser: Any, page_file: Path, width: int, height: int, wanted: int
) -> None:
    """Three sentences and what to use; on a wide screen the picture, too."""
    seen = Seen(browser, page_file, width, height=height)
    things = seen.page.query_selector_all(".lead li, .use, #first-chart svg")
    assert len(things) == 5
    boxes = [box for thing in things if (box := thing.bounding_box())]
    assert sum(box["y"] + box["height"] <= height for box in boxes) >= wanted
    assert all(box["x"] + box["width"] <= width for box in boxes)
    assert seen.page.locator('header a[href="https://arxiv.org/abs/2510.19933"]').count() == 1
    seen.clean(page_file)
    seen.context.close()


@pytest.mark.parametrize("width", [1300, 390])
def test_strips_and_axes_are_aligned(browser: Any, page_file: Path, width: int) -> None:
    seen = unfolded(browser, page_file, width)
    for group in seen.page.query_selector_all(".group"):
        boxes = [svg.bounding_box() for svg in group.query_selector_all("svg.axis, svg.strip")]
        assert len({round(box["x"]) for box in boxes}) == 1
        assert all(box["x"] + box["width"] <= width for box in boxes)
    seen.context.close()


@pytest.mark.parametrize("width", [1300, 390])
def test_every_verdict_unfolds_by_mouse_and_keyboard(browser: Any, page_file: Path, width: int) -> None:
    seen = unfolded(browser, page_file, width)
    rows = seen.page.query_selector_all("details.claim")
    assert len(rows) == len(CLAIMS)
    for row in rows:
        summary, evidence = row.query_selector("summary"), row.query_selector("table")
        assert summary.query_selector(".badge")
        assert summary.query_selector("svg.strip, .drawn .soft")
        assert not evidence.is_visible()
        summary.click()
        assert evidence.is_visible()
        summary.focus()
        seen.page.keyboard.press("Enter")
        assert not evidence.is_visible()
        seen.page.keyboard.press("Space")
        assert evidence.is_visible()
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
    sizes = seen.page.evaluate(
        "[...document.querySelectorAll('.claim .verdicts .badge:first-child')].map(e => getComputedStyle(e).fontSize)"
    )
    assert len(set(sizes)) == 1  # a refutation is as large as a confirmation
    seen.clean(page_file)
    seen.context.close()


def test_everything_is_reached_by_keyboard(browser: Any, page_file: Path) -> None:
    seen = unfolded(browser, page_file)
    things = "[...document.querySelectorAll('.chart, button, summary, nav a')]"
    wanted = seen.page.evaluate(f"{things}.length")
    reached: set[int] = set()
    for _ in range(600):
        seen.page.keyboard.press("Tab")
        place = seen.page.evaluate(f"{things}.indexOf(document.activeElement)")
        if seen.page.evaluate("document.activeElement === document.body"):
            break
        reached |= {place} - {-1}
    assert len(reached) == wanted
    seen.context.close()


def test_buttons_save_files(browser: Any, page_file: Path) -> None:
    seen = unfolded(browser, page_file)
    for kind, beginning in (("csv", b"iterations,step"), ("svg", b"<svg"), ("png", b"\x89PNG")):
        with seen.page.expect_download() as waiting:
            seen.page.locator(f"#convergence button[data-save={kind}]").press("Enter")
        assert Path(waiting.value.path()).read_bytes().startswith(beginning), kind
    saved = page_file.parent / "report" / "convergence.csv"
    with seen.page.expect_download() as waiting:
        seen.page.locator("#convergence button[data-save=csv]").click()
    assert Path(waiting.value.path()).read_text().count("\n") == saved.read_text().count("\n")
    assert seen.said == []
    seen.context.close()


def test_hostile_and_diverged_stores(browser: Any, tmp_path: Path) -> None:
    evil = "<img src=x onerror=\"document.title='hacked'\"></script><script>document.title='hacked'</script>"
    write(tmp_path / "a", grid(lambda c, lr, m: None), evil, evil)
    write(tmp_path / "b", [Case({"problem": {"name": "cnn"}})], "one", evil)
    path = build(tmp_path, pictures=False).page
    seen = Seen(browser, path)
    assert seen.page.title() != "hacked"
    seen.clean(path)
    seen.context.close()
