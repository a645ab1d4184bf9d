"""The explorer in a real browser: its numbers are the package's, a link holds its state, nothing is fetched."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest

pytest.importorskip("mkdocs", reason="the site needs the extra `docs`")
pytest.importorskip("playwright.sync_api", reason="no playwright: pip install playwright")

from browsing import NEEDS_BROWSER, Seen, launched
from inexact_muon import polar
from inexact_muon.schedules.judgement import judge, normaliser
from inexact_muon_lab.cli import tables
from inexact_muon_lab.tune import rules, spectra
from test_explorer import EXPLORER

pytestmark = [pytest.mark.slow, NEEDS_BROWSER]
ENTRIES = {entry.id: entry for entry in EXPLORER.entries()}
S = np.geomspace(1e-5, 1.0, 200)
SIDE = 96
SHAPES = ((64, 64), (768, 3072), (3072, 768), (100, 150), (100, 151))
SPECTRA = ("flat", "power-law", "log-uniform", "gaussian", "gpt-late", "gpt-mid/mlp", "cnn-early")
CONTROLS = "[...document.querySelectorAll('#explorer :is(select, input, button, textarea, summary, svg)')]"
DROP = """([name, text]) => {
    const data = new DataTransfer();
    data.items.add(new File([text], name));
    document.body.dispatchEvent(new DragEvent('drop', {dataTransfer: data, bubbles: true, cancelable: true}));
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launched() as started:
        yield started


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("explorer") / "explorer.html"
    path.write_text(EXPLORER.alone())
    return path


class Opened(Seen):
    """The explorer after a link."""

    def __init__(self, browser: Any, path: Path, link: str = "", **options: Any) -> None:
        super().__init__(browser, path, words=link, **options)
        self.path = path

    def close(self) -> None:
        self.clean(self.path)
        self.context.close()

    def drop(self, name: str, text: str) -> str:
        """What the page says after a file was dropped onto it."""
        self.page.evaluate("document.getElementById('x-status').textContent = ''")
        self.page.evaluate(DROP, [name, text])
        self.page.wait_for_function("document.getElementById('x-status').textContent !== ''")
        return str(self.page.inner_text("#x-status"))

    def state(self) -> dict[str, Any]:
        return dict(self.page.evaluate("explorer.state()"))

    def cells(self, column: str) -> list[str]:
        return list(self.page.locator(f"#x-table td[data-name='{column}']").all_inner_texts())


@pytest.fixture
def opened(browser: Any, page_file: Path) -> Iterator[Opened]:
    page = Opened(browser, page_file)
    yield page
    page.close()


def layers_of(name: str) -> list[spectra.Layer]:
    return [spectra.layer_of(np.ones(SIDE))] if name == "flat" else spectra.resolve(name, side=SIDE)[1]


def compare_maps(page: Any) -> None:
    js = "s => [...explorer.known.values()].map(o => [o.id, s.map(x => Maps.evaluate(o.map, x))])"
    drawn = dict(page.evaluate(js, S.tolist()))
    assert drawn.keys() == ENTRIES.keys()
    for name, entry in ENTRIES.items():
        np.testing.assert_allclose(drawn[name], entry.method.scalar(S), rtol=0, atol=1e-6, err_msg=name)


def test_maps_are_those_of_the_package(opened: Opened) -> None:
    compare_maps(opened.page)


def test_a_wrong_map_is_noticed(opened: Opened) -> None:
    opened.page.evaluate("explorer.known.get('torch').map.steps[4][0] += 1e-4")
    with pytest.raises(AssertionError, match="torch"):
        compare_maps(opened.page)


@pytest.mark.parametrize("name", SPECTRA)
def test_numbers_are_those_of_the_package(browser: Any, page_file: Path, name: str) -> None:
    link = "#" + urlencode({"spectrum": name, "rows": SIDE, "columns": 2 * SIDE})
    opened, layers = Opened(browser, page_file, link), layers_of(name)
    for ours, theirs in zip(opened.page.evaluate("explorer.layers().map(l => l.values)"), layers, strict=True):
        np.testing.assert_allclose(ours, theirs.values, rtol=1e-6)
    js = "[...explorer.known.values()].map(o => [o.id, Maps.judge(o, explorer.layers())])"
    for oracle, judged in opened.page.evaluate(js):
        method = ENTRIES[oracle].method
        expected = spectra.judge_layers(method, layers)
        for key in ("delta", "gap", "overshoot"):
            assert judged[key] == pytest.approx(getattr(expected, key), abs=1e-6), (oracle, key)
        f = [method.scalar(layer.values / normaliser(layer.values, method.normaliser)) for layer in layers]
        assert judged["lifted"] == pytest.approx(np.mean(np.concatenate(f) >= 0.5), abs=1e-9), oracle
    opened.close()


def test_costs_are_those_of_the_package(opened: Opened) -> None:
    for shape in SHAPES:
        costs = dict(
            opened.page.evaluate("s => [...explorer.known.values()].map(o => [o.id, Maps.flops(o, ...s)])", shape)
        )
        assert costs == {name: pytest.approx(entry.method.flops(*shape)) for name, entry in ENTRIES.items()}


def test_the_table_shows_the_numbers(browser: Any, page_file: Path) -> None:
    chosen = ("zolotarev:3", "torch", "newton-schulz:5", "zolotarev(3, power=-0.2)")
    words = [("o", name) for name in chosen]
    link = "#" + urlencode(
        [*words, ("spectrum", "log-uniform"), ("reference", "torch"), ("lr", 0.05), ("norm", "spectral")]
    )
    opened = Opened(browser, page_file, link)
    s = spectra.resolve("log-uniform", side=768)[1][0].values
    judged = [judge(ENTRIES[name].method.map, s, "spectral") for name in chosen]
    assert opened.cells("overshoot") == [f"{j.overshoot:.3f}" for j in judged]
    rates = [rules.descent(judged[1], j).lr for j in judged]
    shown = opened.cells("lr")
    assert shown.pop(1) == "0.05 (reference)"
    assert shown == [f"{0.05 * rate:.3g} (×{rate:.2f})" for k, rate in enumerate(rates) if k != 1]
    products = [ENTRIES[name].method.flops(768, 3072) / (2 * 768**3) for name in chosen]
    assert opened.cells("products") == [f"{x:.3g}" for x in products]
    opened.close()


def test_a_link_holds_the_state(browser: Any, page_file: Path, opened: Opened) -> None:
    page = opened.page
    page.select_option("#x-add", "deepseek-v4")
    page.click("#x-add-this")
    page.select_option("#x-reference", "zolotarev:3")
    page.select_option("#x-norm", "spectral")
    page.fill("#x-lr", "0.07")
    page.fill("#x-rows", "300")
    page.click("text=Your own coefficients")
    page.fill("#x-own", "1.875 -1.25 0.375\n(1.5, -0.5)")
    page.click("#x-own-add")
    page.click("[aria-label='remove Polar Express, 5 steps']")
    page.select_option("#x-spectrum", "rank-deficient")
    page.fill("#x-parameter", "0.4")
    page.focus("#x-plot")
    page.keyboard.press("ArrowRight")
    page.wait_for_timeout(400)
    address, state = page.evaluate("location.hash"), opened.state()
    assert state["oracles"] == ["torch", "zolotarev:3", "deepseek-v4", "own"]
    assert (state["reference"], state["norm"], state["lr"], state["rows"]) == ("zolotarev:3", "spectral", 0.07, 300)
    assert (state["spectrum"], state["parameter"]) == ("rank-deficient", 0.4)
    again = Opened(browser, page_file, address)
    assert again.state() == {**state, "s": pytest.approx(state["s"], rel=1e-3)}
    assert again.page.inner_text("#x-table") == page.inner_text("#x-table")
    again.page.click("#x-reset")
    assert again.state()["oracles"] == ["torch", "polar-express:5", "zolotarev:3"]
    again.close()


def test_typed_coefficients_are_drawn(opened: Opened) -> None:
    rows = ((3.0, -3.0, 1.0), (1.5, -0.5))
    page = opened.page
    page.click("text=Your own coefficients")
    page.fill("#x-own", "3")
    page.click("#x-own-add")
    assert "two or more numbers" in page.inner_text("#x-status")
    page.fill("#x-own", "\n".join(" ".join(map(str, row)) for row in rows))
    page.click("#x-own-add")
    page.select_option("#x-spectrum", "power-law")
    judged = polar.Polynomial(rows, normalise="frobenius").judge(spectra.resolve("power-law", side=768)[1][0].values)
    assert page.locator("#x-table tbody th").last.inner_text() == "Your coefficients"
    assert opened.cells("overshoot")[-1] == f"{judged.overshoot:.3f}"
    assert opened.cells("delta")[-1] == f"{judged.delta:.3f}"


def gap_cell(oracle: str, layers: list[spectra.Layer]) -> str:
    gap = spectra.judge_layers(ENTRIES[oracle].method, layers).gap
    return f"{100 * gap:.{1 if abs(gap) < 0.0995 else 0}f} %".replace("-0.0 ", "0.0 ").replace("-", "−")


def test_files_are_read(browser: Any, page_file: Path, opened: Opened, capsys: pytest.CaptureFixture[str]) -> None:
    numbers = [3.0, 2.0, 1.5, 0.01, 0.4, 0.0]
    layers = [spectra.layer_of(numbers)]
    for name, text in (("list.json", json.dumps(numbers)), ("plain.txt", "# sigma\n3 2 1.5\n1e-2, 0.4; 0")):
        assert opened.drop(name, text) == f"{name}: 1 spectrum"
        assert opened.cells("gap")[0] == gap_cell("torch", layers)
    assert opened.drop("lists.json", json.dumps({"a": numbers, "b": [1, 1]})) == "lists.json: 2 spectra"
    assert opened.cells("gap")[0] == gap_cell("torch", [*layers, spectra.layer_of([1.0, 1.0])])

    tables.delta("jordan:5", "768x3072", "gpt-late", None, json=True)
    assert opened.drop("delta.json", capsys.readouterr().out) == "delta.json: 12 spectra"
    assert opened.cells("gap") == [gap_cell(name, layers_of("gpt-late")) for name in opened.state()["oracles"]]
    opened.page.select_option("#x-layer", label="blocks.0.mlp.2.weight")
    opened.page.wait_for_timeout(400)
    again = Opened(browser, page_file, opened.page.evaluate("location.hash"))
    assert again.state()["layer"] == "gpt-late/mlp/blocks.0.mlp.2.weight"
    ours, theirs = (page.page.evaluate("explorer.layers()[0].values") for page in (again, opened))
    np.testing.assert_allclose(ours[:127], theirs[:127], rtol=0.05)  # a link has 64 order statistics
    again.close()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[1, -2]", "none of them negative"),
        ("[0, 0]", "must be positive"),
        ("one two", "finite numbers"),
        ("{", "is not JSON"),
        ("", "finite numbers"),
        ('{"layers": [{"name": "x"}]}', "finite numbers"),
    ],
)
def test_bad_files_are_refused_with_a_reason(opened: Opened, text: str, words: str) -> None:
    before = opened.state()
    assert words in opened.drop("bad.json", text)
    assert opened.state() == before


@pytest.mark.parametrize(
    "link",
    [
        "#o=nothing&spectrum=nothing&reference=nothing",
        "#s=9&rows=-1&lr=x&parameter=5",
        "#spectrum=file&file=[[1]]",
        "#%%%",
    ],
)
def test_a_wrong_link_shows_the_defaults(browser: Any, page_file: Path, link: str) -> None:
    opened = Opened(browser, page_file, link)
    state = opened.state()
    assert (state["oracles"], state["spectrum"]) == (["torch", "polar-express:5", "zolotarev:3"], "gpt-late")
    assert (state["rows"], state["lr"], state["parameter"]) == (768, 0.02, None)
    opened.close()


def test_names_in_a_file_are_text(opened: Opened) -> None:
    evil = "<img src=x onerror=\"document.title='hacked'\">"
    opened.drop("evil.json", json.dumps({evil: [1, 0.5], "b": [1]}))
    opened.page.select_option("#x-layer", evil)
    opened.page.wait_for_timeout(100)
    assert opened.page.title() != "hacked"
    assert opened.page.locator("#explorer img").count() == 0


def test_f_is_read_by_mouse_and_by_keyboard(opened: Opened) -> None:
    page = opened.page
    page.select_option("#x-norm", "spectral")
    page.select_option("#x-spectrum", "flat")
    box = page.locator("#x-plot").bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 100)
    near = opened.state()["s"]
    assert 1e-3 < near < 1e-2
    page.locator("#x-plot").press("End")
    for key, by in (
        ("PageDown", -0.5),
        ("ArrowLeft", -0.05),
        ("ArrowRight", 0.05),
        ("ArrowDown", -0.05),
        ("ArrowUp", 0.05),
    ):
        before = opened.state()["s"]
        page.keyboard.press(key)
        assert np.log10(opened.state()["s"] / before) == pytest.approx(by)
    words = page.get_attribute("#x-plot", "aria-valuetext")
    for name, label in (("torch", "torch.optim.Muon, KellerJordan/Muon"), ("zolotarev:3", "Zolotarev, 3 poles")):
        f = float(ENTRIES[name].method.scalar(opened.state()["s"]))
        assert f"{label} {f:.3f}" in words
        assert f"{label} {f:.3f}" in page.inner_text("#x-legend")
    page.keyboard.press("Home")
    assert opened.state()["s"] == pytest.approx(1e-5)


def test_everything_is_reached_by_keyboard(opened: Opened) -> None:
    for summary in opened.page.locator("#explorer summary").all():
        summary.press("Enter")
    expected = set(opened.page.evaluate(f"{CONTROLS}.map((e, k) => e.checkVisibility() ? k : -1)")) - {-1}
    opened.page.evaluate("document.activeElement.blur()")
    reached: set[int] = set()
    for _ in range(3 * len(expected)):
        opened.page.keyboard.press("Tab")
        reached.add(opened.page.evaluate(f"{CONTROLS}.indexOf(document.activeElement)"))
    assert expected <= reached
    opened.page.focus("#x-add")
    for key in ("ArrowDown", "ArrowDown", "Tab", "Enter"):
        opened.page.keyboard.press(key)
    assert opened.state()["oracles"][3:] == ["dion-newton-schulz"]
    opened.page.focus("[aria-label='remove Zolotarev, 3 poles']")
    opened.page.keyboard.press("Space")
    assert opened.state()["oracles"] == ["torch", "polar-express:5", "dion-newton-schulz"]


@pytest.mark.parametrize("width", [1300, 390])
def test_it_fits(browser: Any, page_file: Path, width: int) -> None:
    names = list(ENTRIES)[:8]
    opened = Opened(browser, page_file, "#" + urlencode([("o", name) for name in names]), width=width)
    for summary in opened.page.locator("#explorer summary").all():
        summary.click()
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    wide = "[...document.querySelectorAll('#explorer *')].filter(e => e.checkVisibility())"
    assert opened.page.evaluate(f"Math.max(...{wide}.map(e => e.getBoundingClientRect().right))") <= width
    sizes = "[...document.querySelectorAll('#explorer :is(p, td, th, dd, label, button, text)')]"
    assert opened.page.evaluate(f"Math.min(...{sizes}.map(e => parseFloat(getComputedStyle(e).fontSize)))") >= 11
    assert opened.page.locator("#x-plot polyline").count() == len(names)
    opened.page.set_viewport_size({"width": 700, "height": 800})
    opened.page.wait_for_function("document.getElementById('x-plot').viewBox.baseVal.width > 600")
    opened.close()


def test_colours_follow_the_browser_and_the_site(opened: Opened) -> None:
    page = opened.page
    colours = "['#x-finding', '#x-plot .c0', '#x-plot .density'].map(e => getComputedStyle(document.querySelector(e)))"
    colours = (
        f"[getComputedStyle(document.body).backgroundColor, ...{colours}.flatMap(c => [c.color, c.stroke, c.fill])]"
    )
    light = page.evaluate(colours)
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate(colours)
    assert light[0] != dark[0]
    assert light[1] != dark[1]
    assert light[5] != dark[5]  # a curve
    assert light[9] != dark[9]  # the density
    page.evaluate("document.body.className = ''; document.body.dataset.mdColorScheme = 'default'")
    assert page.evaluate(colours)[1:] == light[1:]
    page.evaluate("document.body.dataset.mdColorScheme = 'slate'")
    assert page.evaluate(colours)[1:] == dark[1:]
