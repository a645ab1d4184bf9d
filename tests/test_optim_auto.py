"""polar="auto": one value, resolved at the first step for each shape and device, saved, and never chosen again."""

import copy
import math
import pickle

import pytest
import torch
from torch import nn

from inexact_muon import Muon, explain, lmo, polar, transfer
from inexact_muon.optim import EF21Muon
from inexact_muon.polar import auto, choice, kernel
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
    assert resolved.at(128, 64) == polar.cheapest(64, 128, spread=True)
    assert resolved.at(768, 3072, "cuda") == polar.cheapest(768, 3072, device="cuda")
    for text, words in (("auto:exact", "unknown target"), ("auto(dtype=float32)", "name an oracle")):
        with pytest.raises(ValueError, match=words):
            polar.parse(text)
    with pytest.raises(ValueError, match="before its shape is known"):
        polar.Auto().error_bound(0.1)


@pytest.mark.parametrize("target", auto.TARGETS)
def test_a_target_is_the_word_after_the_colon(target: str) -> None:
    value = polar.parse(f"auto:{target}")
    assert value == polar.Auto(target)
    assert polar.parse(value.short) == value
    resolved = value.resolved([(64, 128, "cpu"), (768, 3072, "cuda"), (768, 768, "meta")])
    assert len(resolved.chosen) == 3
    assert polar.parse(str(resolved)) == resolved
    assert lmo.parse(f"spectral(polar=auto:{target})").polar == value


def test_plain_auto_is_one_constant() -> None:
    assert polar.Auto().target == auto.AUTO_TARGET
    assert polar.parse("auto").short == "auto"


ONE_POLE = "zolotarev(poles=1, lower=0.003)"
QUINTICS, NINTHS = "polar-express(steps=4, lower=0.003", "polar-express(steps=3, lower=0.003, degree=9"
FAST = [
    (8, 8, "cpu", f"{QUINTICS})"),
    (64, 64, "cpu", ONE_POLE),
    (128, 512, "cpu", ONE_POLE),
    (768, 768, "cpu", ONE_POLE),
    (3072, 768, "cpu", ONE_POLE),
    (768, 768, "cuda", f"{QUINTICS}, dtype=float16)"),
    (768, 3072, "cuda", f"{NINTHS}, dtype=float16)"),
    (4096, 14336, "cuda", f"{QUINTICS}, dtype=float16)"),
    (768, 3072, "meta", f"{QUINTICS})"),
]


@pytest.mark.parametrize(("n", "m", "device", "text"), FAST)
def test_fast_is_the_cheapest_that_trains_no_worse(n: int, m: int, device: str, text: str) -> None:
    assert str(polar.Auto("fast").at(n, m, device)) == text


def test_fast_costs_less_than_accurate() -> None:
    for device in ("cpu", "cuda"):
        for n in (16, 64, 128, 256, 512, 768, 2048, 4096):
            for m in (n, 2 * n, 4 * n):
                targets = (auto.TARGETS[target] for target in ("fast", "accurate"))
                fast, accurate = (
                    polar.choose(n, m, t.delta, t.lower, device=device, among=t.among()).cost for t in targets
                )
                assert fast < accurate


@pytest.mark.parametrize("target", auto.TARGETS)
def test_every_choice_is_within_the_bound_of_its_target(target: str) -> None:
    value = polar.Auto(target)
    shapes = [(n, a * n, kind) for n in (8, 64, 768) for a in (1, 4) for kind in ("cpu", "cuda", "meta")]
    assert value.accepts(value.resolved(shapes))
    others = [polar.Auto(other).resolved(shapes) for other in auto.TARGETS if other != target]
    assert not any(value.accepts(other) for other in others)


@pytest.mark.parametrize("target", auto.TARGETS)
def test_the_choice_does_not_depend_on_what_is_installed(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks and resumed runs may differ in that."""
    keys = [(n, a * n, kind) for n in (64, 1024, 4096) for a in (1, 4) for kind in ("cpu", "cuda")]
    found = []
    for installed in (False, True):
        monkeypatch.setattr(kernel, "INSTALLED", installed)
        found.append(polar.Auto(target).resolved(keys))
    assert found[0] == found[1]


def test_a_word_that_is_also_a_method_stays_a_word_where_text_is_wanted() -> None:
    assert polar.parse("polar-express(steps=5, form=auto, normalise=auto)") == polar.PolarExpress(5)


@pytest.mark.parametrize("shape", [(8, 12), (12, 8), (3, 16, 40), (0, 4)])
def test_it_answers_as_what_it_chooses(shape: tuple[int, ...]) -> None:
    m = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    x = polar.Auto()(m)
    assert torch.equal(x, polar.cheapest(*shape[-2:], spread=True)(m) if m.numel() else m)


@pytest.mark.parametrize("made", [Muon.for_model, EF21Muon.for_model], ids=["Muon", "EF21Muon"])
def test_a_checkpoint_keeps_its_target_and_choices(made: object) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))

    def stepped(target: str) -> Muon:
        optimizer = made(model, 0.02, polar=f"auto:{target}")  # type: ignore[operator]
        lines = explain(optimizer).lines
        assert {line.oracle for line in lines} == {f"{polar.Auto(target).short} (not resolved yet)", ""}
        model(torch.ones(3, 8)).sum().backward()
        optimizer.step()
        return optimizer

    fast, accurate = stepped("fast"), stepped("accurate")
    saved = through_disk(fast.state_dict())
    value = lmo.parse(saved["param_groups"][0]["ball"]).polar
    assert value == polar.Auto("fast").resolved([(8, 16, "cpu"), (16, 16, "cpu")])
    again = made(model, 0.02, polar="auto:fast")  # type: ignore[operator]
    again.load_state_dict(saved)
    assert [g["ball"] for g in again.param_groups] == [g["ball"] for g in fast.param_groups]
    with pytest.warns(
        UserWarning, match=r"made with ball spectral\(polar=auto\(target=fast.*keeping .*target=accurate"
    ):
        accurate.load_state_dict(saved)
    assert "target=accurate" in str([g["ball"] for g in accurate.param_groups])
    assert "target=fast" not in str([g["ball"] for g in accurate.param_groups])


@pytest.mark.parametrize("name", MODELS)
def test_it_is_resolved_at_the_first_step_and_stays(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint keeps its oracles when another version would choose others."""
    model, optimizer = trained(name)
    assert {line.oracle for line in explain(optimizer).lines} == {"auto (not resolved yet)", ""}
    optimizer.step()
    for line in explain(optimizer).lines:
        if line.algorithm == "spectral":
            n, m = max((tuple(map(int, s.split("x")))[-2:] for s in line.matrices.split(" + ")), key=math.prod)
            assert line.oracle == str(polar.cheapest(n, m, spread=True))
    monkeypatch.setattr(choice, "cheapest", lambda *_, **__: polar.Cans(7))
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
    assert [line.oracle for line in explain(other).lines] == [line.oracle for line in explain(optimizer).lines]


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
    for text in ("auto", "auto:fast"):
        found = transfer(0.05, 0.95, text, "polar-express:2")
        assert 0.0 < found.lr < 1.0
    same = transfer(0.05, 0.95, "auto:fast", "zolotarev(poles=1, lower=0.003)")  # every recorded shape has one pole
    assert same.lr == pytest.approx(0.05)
