"""What `explain` shows: the model's order, the terminal's width, notebooks, wrapped optimizers; first mistakes."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields
from html.parser import HTMLParser
from typing import Any

import pytest
import torch
from torch import nn

from fake_models import llama, on_fake_cuda
from inexact_muon import Inexactness, Muon, Scion, explain, lmo, measure
from inexact_muon.optim import LMOOptimizer
from inexact_muon.optim.explanation import COLUMNS, Line
from inexact_muon_lab.plan.recorder import fake_h100
from models import MODELS

LONG = "encoder_of_a_model_whose_modules_have_long_names"


def deep() -> nn.Module:
    """Names of 80 characters and more."""
    blocks = nn.ModuleList(nn.Sequential(nn.Linear(24, 48), nn.LayerNorm(48), nn.Linear(48, 24)) for _ in range(2))
    return nn.ModuleDict({LONG: nn.ModuleDict({LONG: blocks}), "head": nn.Linear(24, 10)})


def trained(model: nn.Module, **options: Any) -> Muon:
    """After one step with random gradients."""
    optimizer = Muon.for_model(model, 0.02, **options)
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    optimizer.step()
    return optimizer


@pytest.mark.parametrize("name", MODELS)
def test_rows_are_in_the_order_of_the_model(name: str) -> None:
    model = MODELS[name][0]()
    order = [line.parameter for line in explain(Muon.for_model(model, 0.02)).lines]
    wanted = [n for n, p in model.named_parameters() if p.requires_grad]
    assert sorted(order) == sorted(wanted)
    assert order == wanted


def test_parameters_that_were_added_come_last() -> None:
    model = deep()
    optimizer = Muon.for_model(model, 0.02)
    optimizer.add_param_group({"params": [("extra", nn.Parameter(torch.zeros(4, 4)))]})
    assert [line.parameter for line in explain(optimizer).lines][-1] == "extra"


@pytest.mark.parametrize("installed", [False, True])
def test_products_on_an_accelerator_are_named(installed: bool) -> None:
    """Dtype, form and kernel, as they run there, with the flops of that form."""
    with fake_h100(triton=installed):
        optimizer = Muon.for_model(on_fake_cuda(lambda: llama(1)), 0.02)
        optimizer.step()
        found = explain(optimizer)
    triton = ", symmetric ones by the Triton kernel" if installed else ""
    runs = {line.matrices: line.runs for line in found.lines if line.algorithm == "spectral"}
    assert runs["4096x4096"] == f"float16, direct form{triton}"
    assert runs["4096x14336"] == runs["14336x4096"] == f"float16, Gram form{triton}"
    assert runs["1024x4096"] == "float16, Gram form", "below the kernel's gate"
    assert f"products in float16, Gram form{triton}." in str(found)
    flops = {line.matrices: line.flops for line in found.lines}
    assert flops["1024x4096"] == 36 * 2 * 1024**3
    assert not any(line.runs for line in explain(trained(deep())).lines)


def test_columns_are_fields() -> None:
    names = [field.name for field in fields(Line)]
    *plain, gap, overshoot, lifted = COLUMNS
    assert [name for name in names if name not in ("sure", "runs", "bound", "inexactness", "stages", "role")] == plain
    assert {gap, overshoot, lifted} < {field.name for field in fields(Inexactness)}


@pytest.mark.parametrize("width", [40, 80, 100, 120, 160, 200, 300])
def test_every_width_shows_names_and_numbers_whole(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    explanation = explain(trained(deep(), sample_every=1, weight_decay=0.0123))
    text = str(explanation)
    assert "…" not in text
    for line in explanation.rows:
        for value in (line.parameter, line.algorithm, line.oracle, f"{line.lr:g}", f"{line.weight_decay:g}"):
            assert value in text
    assert text.rstrip().endswith(explanation.answer)
    grid = [line for line in text.splitlines() if line.startswith(("│", "┃"))]
    assert all(len(line) <= width for line in grid)
    assert bool(grid) == (width > 200)


def test_a_wide_table_names_its_columns_and_a_narrower_one_what_it_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    explanation = explain(trained(MODELS["gpt"][0](), sample_every=1))
    monkeypatch.setenv("COLUMNS", "250")
    assert all(f" {name} " in str(explanation) for name in COLUMNS)
    texts = []
    for width in range(250, 100, -10):
        monkeypatch.setenv("COLUMNS", str(width))
        texts.append(str(explanation))
    assert any("Left out at this width: flops." in text for text in texts)


def test_without_a_terminal_it_is_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr("sys.__stdout__", None)
    assert "┏" in str(explain(Muon.for_model(MODELS["gpt"][0](), 0.02)))


def test_equal_layers_are_one_row_and_totals_are_those_of_all() -> None:
    explanation = explain(trained(deep()))
    rows = {row.parameter: row for row in explanation.rows}
    assert f"{LONG}.{LONG}.0-1.0.weight" in rows
    assert sum(row.flops for row in rows.values()) == sum(line.flops for line in explanation.lines)
    both = [line.inexactness for line in explanation.lines if line.parameter.endswith(".0.weight")]
    found = rows[f"{LONG}.{LONG}.0-1.0.weight"].inexactness
    assert found is not None
    assert found.gap == max(i.gap for i in both if i is not None)
    lmo = sum(1 for line in explanation.lines if line.matrices)
    assert f"{lmo} of {len(explanation.lines)} parameters get an LMO" in str(explanation)


def test_rows_are_grouped_only_if_they_are_equal() -> None:
    optimizer = Muon.for_model(deep(), 0.02, rules=[(f"{LONG}.{LONG}.1.0.weight", "adamw")])
    names = [row.parameter for row in explain(optimizer).rows]
    assert f"{LONG}.{LONG}.0.0.weight" in names
    assert f"{LONG}.{LONG}.1.0.weight" in names


class Cells(HTMLParser):
    """The texts of a table; complains about tags that do not match."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: dict[str, list[str]] = {"th": [], "td": [], "p": []}

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open.append(tag)
        if tag in self.found:
            self.found[tag].append("")
        assert not any(value and "//" in value for _, value in attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.found[self.open[-1]][-1] += data


def test_notebooks_get_a_table() -> None:
    odd = nn.ParameterDict({"a<b>&c": nn.Parameter(torch.zeros(4, 6)), "flat": nn.Parameter(torch.zeros(2_000_000))})
    explanation = explain(Muon.for_model(odd, 0.02, rules=[("a*", "lmo")]))
    assert explanation.warnings
    read = Cells()
    read.feed(explanation._repr_html_())
    assert not read.open
    assert read.found["th"] == list(COLUMNS)
    assert read.found["td"] == [cell for line in explanation.rows for cell in line.cells()]
    assert "a<b>&c" in read.found["td"]
    assert read.found["p"] == list(explanation.notes)
    assert f"warning: {explanation.warnings[0]}" in explanation.notes


def test_a_guess_is_marked() -> None:
    optimizer = Muon.for_model(deep(), 0.02)
    assert "?" not in str(explain(optimizer))
    optimizer.unsure = {"head.weight"}  # type: ignore[attr-defined]
    (line,) = [line for line in explain(optimizer).lines if not line.sure]
    assert line.parameter == "head.weight"
    assert f"{line.algorithm} ?" in str(explain(optimizer))
    assert "?: a guess; rules=" in str(explain(optimizer))
    assert "?: a guess; rules=" in explain(optimizer)._repr_html_()


class Wrapper(torch.optim.Optimizer):
    """Holds an optimizer under this name, as frameworks do."""

    def __init__(self, name: str, inner: torch.optim.Optimizer) -> None:
        setattr(self, name, inner)
        self.param_groups = inner.param_groups


@pytest.mark.parametrize("names", [("optimizer",), ("_optimizer",), ("optim",), ("optimizer", "_optimizer", "optim")])
def test_wrapped_optimizers(names: tuple[str, ...]) -> None:
    optimizer: Any = Muon.for_model(deep(), 0.02)
    wrapped = optimizer
    for name in names:
        wrapped = Wrapper(name, wrapped)
    assert explain(wrapped) == explain(optimizer)
    with pytest.raises(TypeError, match=r"of this library, got SGD; advise\(optimizer\) answers for others"):
        explain(Wrapper("optimizer", torch.optim.SGD(deep().parameters())))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_accelerate_and_lightning_wrap_it() -> None:
    accelerate = pytest.importorskip("accelerate")
    lightning = pytest.importorskip("lightning.pytorch.core.optimizer")
    optimizer = trained(deep(), sample_every=1)
    expected = explain(optimizer)
    assert explain(lightning.LightningOptimizer(optimizer)) == expected
    assert explain(accelerate.Accelerator(cpu=True).prepare(optimizer)) == expected


@pytest.mark.slow  # an optimizer in a new process imports torch's compiler
def test_importing_the_package_does_not_import_rich() -> None:
    code = (
        "import sys; from inexact_muon import Muon, explain; import torch; p = torch.nn.Parameter(torch.zeros(4, 6)); "
        "e = explain(Muon([p], polar='jordan:5')); e._repr_html_(); assert 'rich' not in sys.modules; str(e)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# the first mistakes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [Muon, Scion, lambda params: LMOOptimizer(params, 0.1, 0.9, ball="spectral")])
def test_a_vector_is_named_and_so_is_the_way_out(make: Any) -> None:
    model = nn.Sequential(nn.Linear(8, 32))
    with pytest.raises(
        ValueError, match=r"needs a matrix, got 0\.bias of shape \(32,\).*Muon\.for_model\(model, lr\)"
    ) as e:
        make(model.named_parameters())
    assert "\n" not in str(e.value)
    with pytest.raises(ValueError, match=r"needs a matrix, got a parameter of shape \(32,\).*Muon\.for_model"):
        make(model.parameters())
    assert make([{"params": [model[0].weight]}, {"params": [model[0].bias], "algorithm": "adamw"}])


@pytest.mark.parametrize("given", ["parameters", "named_parameters", "state_dict"])
def test_for_model_wants_the_model(given: str) -> None:
    model = deep()
    with pytest.raises(TypeError, match=r"write Muon\.for_model\(model, lr\), not model\.parameters\(\)") as caught:
        Muon.for_model(getattr(model, given)(), 0.02)
    assert "\n" not in str(caught.value)


def test_a_number_for_adamw_and_swapped_arguments_are_one_sentence() -> None:
    with pytest.raises(TypeError, match=r'adamw must be a dict of options, such as adamw=\{"lr": 0.003\}, got 0.0003'):
        Muon.for_model(deep(), 0.02, adamw=3e-4)  # type: ignore[arg-type]
    ball, m = lmo.Spectral(), torch.randn(4, 6)
    with pytest.raises(TypeError, match="the first argument must be a ball, got Tensor"):
        measure(m, ball, ball(m))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "near"),
    [("lrr", "lr"), ("learning_rate", "lr"), ("LR", "lr"), ("beta", "betas"), ("wd", "weight_decay"),
     ("epsilon", "eps"), ("weightdecay", "weight_decay"), ("momentum", None), ("l", "lr"), (3, None)],
)  # fmt: skip
def test_a_typo_in_adamw_is_one_sentence(name: object, near: str | None) -> None:
    hint = f"did you mean '{near}'\\? " if near else ""
    with pytest.raises(TypeError, match=f"^adamw has no option {name!r}: {hint}known: betas, eps, lr, weight_decay$"):
        Muon.for_model(deep(), 0.02, adamw={name: 3e-4})  # type: ignore[dict-item]


def test_inexactness_without_sampling_says_what_to_pass() -> None:
    optimizer = trained(deep())
    with pytest.warns(UserWarning, match="pass sample_every=10"):
        assert optimizer.inexactness() == {}
    assert not re.search(r"\bsampled\b", str(explain(optimizer)))
    assert trained(deep(), sample_every=1).inexactness()
