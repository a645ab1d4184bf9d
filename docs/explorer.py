"""The explorer: its data from the package, put with its page and scripts into the site and into one file.

`python docs/explorer.py FILE.html` writes the page alone, to open or send without the site; texts of oracles that
follow, such as "zolotarev(2, lower=5e-4)", are added to its list.
"""

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from mkdocs.structure.pages import Page

from inexact_muon import polar, schedules
from inexact_muon.schedules.published import JORDAN
from inexact_muon_lab.tune import spectra

HERE = Path(__file__).parent
PARTS = HERE / "explorer"
MARK = re.compile(r'<p id="explorer">.*?</p>', re.DOTALL)

Steps = Sequence[Sequence[float]]


@dataclass(frozen=True)
class Entry:
    """An oracle of the explorer.

    Attributes:
        id: name in links; for an oracle of this package the text that `polar.parse` reads.
        label: name on the page.
        source: file and date at which the coefficients were read; of this package's oracles it is the map's own.
        note: what the library does besides, which the curve does not show.
    """

    id: str
    label: str
    method: polar.PolarMethod
    source: str = ""
    note: str = ""


def scaled(steps: Steps, factor: float) -> tuple[tuple[float, ...], ...]:
    """p_t(s/factor) of each step."""
    return tuple(tuple(c / factor ** (2 * k + 1) for k, c in enumerate(step)) for step in steps)


def run(steps: Steps, margin: float = 1.0) -> polar.Polynomial:
    """These steps in direct form after a division by margin * ||M||_F, which the first step takes in."""
    first, *later = steps
    return polar.Polynomial((*scaled([first], margin), *map(tuple, later)), form="direct", normalise="frobenius")


def rounded(steps: Steps) -> tuple[tuple[float, ...], ...]:
    """To four decimals."""
    return tuple(tuple(round(c, 4) for c in step) for step in steps)


PAPER = schedules.polar_express(8, safety=1.0).coefficients
"""The eight steps that the Polar Express paper lists, before its safety factor."""
ROUNDED = (
    *((8.2051, -22.9019, 16.4607), (4.0664, -2.8612, 0.5184), (3.9096, -2.8234, 0.5250), (3.2856, -2.4153, 0.4853)),
    *((2.2779, -1.6198, 0.3985), (1.8726, -1.2307, 0.3585), (1.8564, -1.2132, 0.3568), (1.8750, -1.2500, 0.3750)),
)
"""The same with the factor 1.01 of its Algorithm 1, to four digits."""
TWO_PERCENT = schedules.polar_express(5, safety=1.02, cushion=0.02).coefficients
ONE_PERCENT = schedules.polar_express(8, safety=1.01, cushion=0.02).coefficients
AOL = ((4.0098, -7.0585, 2.4635), (3.4585, -5.5479, 2.5959), (2.7573, -3.2939, 1.4254), (2.7215, -3.0494, 1.3169))
CUBIC = (
    *((3.3656576, -3.3420992), (2.5744352, -1.4957376), (2.5368962, -1.4312570)),
    *((2.4418906, -1.2764040), (2.2230472, -0.9630650)),
)
EMERGING = "NVIDIA-NeMo/Emerging-Optimizers, orthogonalized_optimizers/muon_utils.py, 20 August 2026"

LIBRARIES = (
    Entry(
        "torch",
        "torch.optim.Muon, KellerJordan/Muon: 5 Jordan steps",
        run([JORDAN] * 5),
        "torch 2.13.0, torch/optim/_muon.py; KellerJordan/Muon, muon.py, 23 November 2025",
        "Also the default of Scion, optax and torchtitan.",
    ),
    Entry(
        "dion",
        "dion, modded-nanogpt: Polar Express, 5 steps",
        run(TWO_PERCENT, 1.02),
        "microsoft/dion, dion/polar_express.py, 7 August 2026; modded-nanogpt, train_gpt.py, 1 August 2026",
        "modded-nanogpt scales the rows of the result afterwards (NorMuon).",
    ),
    Entry(
        "dion-newton-schulz",
        "dion without Polar Express, Emerging-Optimizers quintic, timm: You's 5 steps",
        run(schedules.you(5).coefficients),
        f"microsoft/dion, dion/muon.py, 7 August 2026; {EMERGING}; timm, optim/muon.py, 8 August 2026",
        "The default of Emerging-Optimizers and timm. Emerging-Optimizers starts again from the first step after five.",
    ),
    Entry(
        "nanochat",
        "nanochat: Polar Express, 5 steps",
        run(TWO_PERCENT, 1.01),
        "karpathy/nanochat, nanochat/optim.py, 3 July 2026",
        "It equalises the rows before and the Frobenius norm after the steps, which this curve leaves out.",
    ),
    Entry("emerging-polar-express", "Emerging-Optimizers polar_express, 5 steps", run(ROUNDED[:5]), EMERGING),
    Entry("emerging-polar-express-8", "Emerging-Optimizers polar_express, 8 steps", run(ROUNDED), EMERGING),
    Entry("emerging-cans", "Emerging-Optimizers cans, 5 steps", run(rounded(schedules.cans(5).coefficients)), EMERGING),
    Entry(
        "emerging-aol",
        "Emerging-Optimizers aol, 4 steps",
        run(AOL),
        EMERGING,
        "Made for another normaliser: after the Frobenius norm a dominant singular value comes out negative.",
    ),
    Entry("emerging-cubic5", "Emerging-Optimizers cubic5, 5 cubic steps", run(CUBIC), f"{EMERGING}; arXiv 2606.00371"),
    Entry(
        "deepseek-v4",
        "DeepSeek-V4: 8 Jordan steps and 2 that converge",
        run([JORDAN] * 8 + [(2.0, -1.5, 0.5)] * 2),
        f"{EMERGING}, set deepseekv4",
    ),
    Entry(
        "timm-polar-express",
        "timm polar_express, 5 steps",
        run(ONE_PERCENT[:5]),
        "timm, optim/muon.py, 8 August 2026",
        "The first five of its eight steps, which is what its default runs.",
    ),
    Entry(
        "gram-newton-schulz",
        "gram-newton-schulz, DMuon: Polar Express, 5 steps",
        run(scaled(PAPER[:5], 1.05)),
        "Dao-AILab/gram-newton-schulz, coefficients.py, 26 June 2026",
        "It iterates in Gram form, which costs less than the direct form counted here.",
    ),
    Entry(
        "airbench",
        "cifar10-airbench: 3 Jordan steps",
        run([JORDAN] * 3),
        "KellerJordan/cifar10-airbench, airbench94_muon.py, 2 March 2025",
    ),
)
"""What other libraries run. Lists that the package can design come from it, others are copied digit by digit."""

OWN = {
    "polar-express:3": "Polar Express, 3 steps",
    "polar-express:4": "Polar Express, 4 steps",
    "polar-express:5": "Polar Express, 5 steps",
    "polar-express:6": "Polar Express, 6 steps",
    "polar-express:8": "Polar Express, 8 steps",
    "polar-express(4, lower=0.003)": "Polar Express, 4 steps from 0.003",
    "polar-express(3, lower=0.003, degree=9)": "Polar Express, 3 steps of degree 9 from 0.003",
    "polar-express(7, lower=1e-5)": "Polar Express, 7 steps from 1e-5",
    "polar-express(5, power=-0.2)": "Polar Express, 5 steps, tilt s^-0.2",
    "cans:5": "CANS, 5 steps",
    "cans:6": "CANS, 6 steps",
    "zolotarev(1, lower=0.003)": "Zolotarev, 1 pole from 0.003",
    "zolotarev(1, polish=9)": "Zolotarev, 1 pole and a polynomial of degree 9",
    "zolotarev:2": "Zolotarev, 2 poles",
    "zolotarev:3": "Zolotarev, 3 poles",
    "zolotarev(4, lower=1e-4)": "Zolotarev, 4 poles from 1e-4",
    "zolotarev(6, lower=1e-6)": "Zolotarev, 6 poles from 1e-6",
    "zolotarev(3, power=-0.2)": "Zolotarev, 3 poles, tilt s^-0.2",
    "zolotarev(3, power=0.2)": "Zolotarev, 3 poles, tilt s^0.2",
    "newton-schulz:5": "Newton-Schulz, 5 steps of degree 5",
    "newton-schulz:10": "Newton-Schulz, 10 steps of degree 5",
    "newton-schulz(10, degree=3)": "Newton-Schulz, 10 steps of degree 3",
    "jordan:8": "Jordan, 8 steps",
    "you:6": "You, 6 steps",
    "cesista:5": "Cesista, 5 steps",
    "exact-svd": "Exact (singular value decomposition)",
}
"""Text of an oracle of this package -> its name on the page. Designed from 1e-3 unless another end is named."""

RUNS = {
    "gpt": "Small GPT (2 blocks, bytes)",
    "cnn": "Small CNN (3 convolutions, digits)",
}
STAGES = {"late": "after 250 steps", "mid": "after 100 steps", "early": "after 10 steps"}
"""As studies/record_spectra.py trains them; the order is that of the page."""


def entries(more: Sequence[str] = ()) -> tuple[Entry, ...]:
    """All oracles, those of other libraries first, then those of this package, then the texts `more`."""
    own = {**{text: text for text in more}, **OWN}
    return (*LIBRARIES, *(Entry(text, label, polar.parse(text)) for text, label in own.items()))


def map_data(scalar_map: schedules.ScalarMap) -> dict[str, Any]:
    """The coefficients that the page evaluates."""
    match scalar_map:
        case schedules.Schedule():
            return {"steps": scalar_map.coefficients, "weights": scalar_map.weights}
        case schedules.Rational(scale=scale, poles=poles, residues=residues, polish=polish):
            plain = {"scale": scale, "poles": poles, "residues": residues}
            return {**plain, "polish": polish} if polish else plain
    return {"exact": True}


def data(more: Sequence[str] = ()) -> dict[str, Any]:
    """What the page reads: oracles as coefficients, recorded spectra as order statistics of log10(sigma/sigma_1)."""
    oracles = [
        {
            "id": entry.id,
            "label": entry.label,
            "library": entry in LIBRARIES,
            "map": map_data(entry.method.map),
            "norm": entry.method.normaliser,
            "form": entry.method.form,
            "source": entry.source or entry.method.map.source,
            "note": entry.note,
        }
        for entry in entries(more)
    ]
    layers = []
    for layer in spectra.load(spectra.SHIPPED):
        stored = spectra.positions(layer.values.size)
        logs = [round(x, 8) for x in np.log10(layer.values[stored] / layer.values[0]).tolist()]
        layers.append(
            {"name": layer.name, "shape": layer.shape, "rank": layer.values.size, "top": layer.values[0], "logs": logs}
        )
    runs = [
        {"id": f"{run}-{stage}", "label": f"{title}, {when}"}
        for run, title in RUNS.items()
        for stage, when in STAGES.items()
    ]
    return {"oracles": oracles, "layers": layers, "recorded": runs}


def fragment(more: Sequence[str] = ()) -> str:
    """The explorer as one piece of HTML: style, markup, data, scripts."""
    text = json.dumps(data(more), separators=(",", ":")).replace("<", "\\u003c")
    scripts = (f"const DATA = {text};", *((PARTS / name).read_text() for name in ("maps.js", "view.js")))
    style, body = ((PARTS / name).read_text() for name in ("explorer.css", "body.html"))
    return f"<style>\n{style}</style>\n{body}" + "".join(f"<script>\n{script}</script>\n" for script in scripts)


def alone(more: Sequence[str] = ()) -> str:
    """The page as one file, with the title and the first paragraph of docs/explorer.md."""
    _, title, lead, _ = re.split(r"^# |\n\n", (HERE / "explorer.md").read_text(), maxsplit=3, flags=re.MULTILINE)
    head = f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{title}</title>\n'
    view = '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    return f'{head}{view}<body class="alone">\n<h1>{title}</h1>\n<p>{lead}</p>\n{fragment(more)}</body>\n</html>\n'


def on_page_content(html: str, page: Page, **_: Any) -> str:
    """Puts the explorer where its page has the mark; called by mkdocs."""
    return MARK.sub(lambda _: fragment(), html, count=1) if page.file.src_uri == "explorer.md" else html


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("name the file to write: python docs/explorer.py FILE.html [ORACLE ...]")
    Path(sys.argv[1]).write_text(alone(sys.argv[2:]))
    print(f"written: {sys.argv[1]}")
