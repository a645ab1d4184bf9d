"""polar="auto": one value, resolved at the first step for each shape and device, saved, and never chosen again."""

import copy
import math
import pickle

import pytest
import torch
from torch import nn

from inexact_muon import Muon, explain, lmo, polar, transfer
from inexact_muon.polar import auto
from models import MODELS
from test_optim_promises import through_disk


def trained(name: str, **options: object) -> tuple[nn.Module, Muon]:
    torch.manual_seed(0)
    make, inputs = MODELS[name]
    model = make()
    optimizer = Muon.for_model(model, 0.02, **options)  # type: ignore[arg-type]
    model(inputs).square().mean().backward()
    return model, optimizer


def test_it_is_a_value_with_a_text() -> None:
    assert polar.parse("auto") == polar.Auto() == polar.parse("auto:accurate")
    resolved = polar.Auto().resolved([(64, 128, "cpu"), (768, 3072, "cuda")])
    assert polar.parse(str(resolved)) == resolved
    assert lmo.parse(f"spectral(polar={resolved})").polar == resolved
    assert resolved.resolved([(64, 128, "cpu")]) is resolved
    assert resolved.at(128, 64) == polar.cheapest(64, 128)
    assert resolved.at(768, 3072, "cuda") == polar.cheapest(768, 3072, device="cuda")
    for text, words in (("auto:exact", "unknown target"), ("auto(dtype=float32)", "name an oracle")):
        with pytest.raises(ValueError, match=words):
            polar.parse(text)
    with pytest.raises(ValueError, match="before its shape is known"):
        polar.Auto().error_bound(0.1)


def test_a_word_that_is_also_a_method_stays_a_word_where_text_is_wanted() -> None:
    assert polar.parse("polar-express(steps=5, form=auto, normalise=auto)") == polar.PolarExpress(5)


@pytest.mark.parametrize("shape", [(8, 12), (12, 8), (3, 16, 40), (0, 4)])
def test_it_answers_as_what_it_chooses(shape: tuple[int, ...]) -> None:
    m = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    x = polar.Auto()(m)
    assert torch.equal(x, polar.cheapest(*shape[-2:])(m) if m.numel() else m)


@pytest.mark.parametrize("name", MODELS)
def test_it_is_resolved_at_the_first_step_and_stays(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint keeps its oracles when another version would choose others."""
    model, optimizer = trained(name)
    assert {line.oracle for line in explain(optimizer).lines} == {"auto (not resolved yet)", ""}
    optimizer.step()
    for line in explain(optimizer).lines:
        if line.algorithm == "spectral":
            n, m = max((tuple(map(int, s.split("x")))[-2:] for s in line.matrices.split(" + ")), key=math.prod)
            assert line.oracle == str(polar.cheapest(n, m))
    monkeypatch.setattr(auto, "cheapest", lambda *_, **__: polar.Cans(7))
    later = Muon.for_model(model, 0.02)
    later.step()
    assert {line.oracle for line in explain(later).lines} == {"cans(steps=7)", ""}
    later.load_state_dict(through_disk(optimizer.state_dict()))
    assert [line.oracle for line in explain(later).lines] == [line.oracle for line in explain(optimizer).lines]
    fixed = Muon.for_model(model, 0.02, polar="jordan:5")
    with pytest.warns(UserWarning, match=r"made with ball spectral\(polar=auto.*keeping spectral\(polar=jordan"):
        fixed.load_state_dict(optimizer.state_dict())
    assert {line.oracle for line in explain(fixed).lines} == {"jordan(steps=5)", ""}


def test_a_file_cannot_choose_what_auto_would_not() -> None:
    model, optimizer = trained("gpt")
    optimizer.step()
    saved = optimizer.state_dict()
    for group in saved["param_groups"]:
        group["ball"] = group["ball"].replace("poles=1", "poles=1").replace("polish=9", "polish=0")
    other = Muon.for_model(model, 0.02)
    with pytest.warns(UserWarning, match="keeping spectral"):
        other.load_state_dict(saved)
    other.step()
    assert explain(other).lines == explain(optimizer).lines


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))], ids=["deepcopy", "pickle"])
def test_a_copy_has_the_same_choices(clone: object) -> None:
    _, optimizer = trained("vit")
    optimizer.step()
    twin = clone(optimizer)  # type: ignore[operator]
    assert [g["ball"] for g in twin.param_groups] == [g["ball"] for g in optimizer.param_groups]
    lost = vars(optimizer).keys() - vars(twin).keys()
    assert lost <= {"_warned_capturable_if_run_uncaptured"}  # torch's own


def test_a_model_may_move_before_the_first_step() -> None:
    """`for_model` before `.to(device)` does not freeze the choice of the device that it was made on."""
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = Muon.for_model(model, 0.02)
    for p in model.parameters():
        torch.utils.swap_tensors(p, nn.Parameter(torch.empty(p.shape, device="meta")))
        p.grad = torch.empty(p.shape, device="meta")
    optimizer.step()
    assert "polar-express" in optimizer.param_groups[0]["ball"]
    assert "zolotarev" not in optimizer.param_groups[0]["ball"]


def test_it_is_taken_wherever_an_oracle_is() -> None:
    optimizer = Muon([nn.Parameter(torch.zeros(4, 6))], polar="auto")
    assert optimizer.param_groups[0]["ball"].startswith("spectral(polar=auto")
    found = transfer(0.05, 0.95, "auto", "polar-express:2")
    assert 0.0 < found.lr < 1.0
