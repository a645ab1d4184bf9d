"""Checkpoints load by name, ours under other rules and oracles and those of other optimizers; what differs is named."""

import copy
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from inexact_muon import Muon
from inexact_muon.optim import load_foreign, structure
from models import GPT
from test_optim_promises import through_disk
from torch_features import needs_torch_muon

STEPS = 10
TOLERANCE = 0.02
"""Of the distance walked in ten steps: the sources multiply in bfloat16."""


def model(seed: int = 0, **options: Any) -> GPT:
    torch.manual_seed(seed)
    return GPT(**options)


def train(net: nn.Module, optimizers: list[Any], steps: int, seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        for p in net.parameters():
            p.grad = torch.randn(p.shape, generator=generator)
        for optimizer in optimizers:
            optimizer.step()


def named(net: nn.Module, matrices: bool) -> list[tuple[str, nn.Parameter]]:
    """What people give to Muon and to Adam."""
    hidden = [(n, p) for n, p in net.named_parameters() if n.startswith("blocks") and p.ndim == 2]
    chosen = {name for name, _ in hidden}
    return hidden if matrices else [(n, p) for n, p in net.named_parameters() if n not in chosen]


def quiet(action: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return action()


def distance(a: nn.Module, b: nn.Module) -> float:
    return (
        float(sum((x - y).detach().square().sum() for x, y in zip(a.parameters(), b.parameters(), strict=True))) ** 0.5
    )


def same_afterwards(source: nn.Module, stepping: list[Any], ours: nn.Module, optimizer: Muon) -> None:
    start = copy.deepcopy(source)
    train(source, stepping, STEPS, seed=7)
    train(ours, [optimizer], STEPS, seed=7)
    assert distance(source, start) > 0.1
    assert distance(source, ours) <= TOLERANCE * distance(source, start)


# ours -----------------------------------------------------------------------------------------------------------------


def test_other_rules_and_oracles_find_their_parameters() -> None:
    net = model()
    saved = Muon.for_model(net, 0.02, adamw={"lr": 0.003}, polar="jordan:5")
    train(net, [saved], 3)
    file = through_disk(saved.state_dict())
    other = Muon.for_model(net, 0.5, rules=[("blocks.0.q.*", "adamw")], polar="zolotarev:2")
    with pytest.warns(UserWarning, match="start with empty state|keeping") as caught:
        other.load_state_dict(file)
    said = " ".join(str(w.message) for w in caught)
    assert "keeping spectral(polar=zolotarev" in said
    assert "another algorithm in the checkpoint start with empty state: blocks.0.q.weight (lmo)" in said
    for name, p, group in other.named():
        if name == "blocks.0.q.weight":
            assert "exp_avg" not in other.state[p]
            continue
        for key, value in saved.state[p].items():
            assert torch.equal(other.state[p][key], value), (name, key)
        assert group["lr"] == (0.02 if group["algorithm"] == "lmo" else 0.003) or name == "blocks.0.q.weight"
    train(net, [other], 2)


def test_new_and_lost_parameters_are_named() -> None:
    net = model()
    optimizer = Muon.for_model(net, 0.02)
    train(net, [optimizer], 2)
    file = optimizer.state_dict()
    net.blocks.append(copy.deepcopy(net.blocks[0]))
    with pytest.warns(UserWarning, match=r"not in the checkpoint start with empty state: blocks.2.* more"):
        Muon.for_model(net, 0.02).load_state_dict(file)
    del net.blocks[1:]
    with pytest.warns(UserWarning, match=r"in the checkpoint but not in the optimizer are dropped: .*blocks.1"):
        Muon.for_model(net, 0.02).load_state_dict(file)


def test_wrappers_do_not_change_names() -> None:
    net = model()
    optimizer = Muon.for_model(net, 0.02)
    train(net, [optimizer], 2)
    wrapped = nn.ModuleDict({"_orig_mod": net})
    other = Muon.for_model(wrapped, 0.02)
    other.load_state_dict(optimizer.state_dict())
    assert all(torch.equal(other.state[p][k], v) for p in net.parameters() for k, v in optimizer.state[p].items())


def test_another_size_is_refused_by_name_and_changes_nothing() -> None:
    net, wide = model(), model(width=32)
    optimizer, other = Muon.for_model(net, 0.02), Muon.for_model(wide, 0.5)
    train(net, [optimizer], 2)
    train(wide, [other], 1)
    before = copy.deepcopy(other.state_dict())
    with pytest.raises(
        ValueError, match=r"has shape \(.*16.*\) in the checkpoint and the parameter \(.*32.*nothing was changed"
    ):
        other.load_state_dict(optimizer.state_dict())
    after = other.state_dict()
    assert after["param_groups"] == before["param_groups"]
    for i, entry in before["state"].items():
        assert all(torch.equal(entry[k], after["state"][i][k]) for k in entry)


@pytest.mark.parametrize(("key", "value"), [("lr", float("nan")), ("momentum", 2.0), ("weight_decay", -1.0)])
def test_options_out_of_range_are_refused(key: str, value: float) -> None:
    net = model()
    optimizer = Muon.for_model(net, 0.02)
    file = copy.deepcopy(optimizer.state_dict())
    file["param_groups"][0][key] = value
    with pytest.raises(ValueError, match=key):
        optimizer.load_state_dict(file)


@pytest.mark.parametrize(("key", "value"), [("constrained", True), ("maximize", True), ("scale", "spectral")])
def test_the_algorithm_stays_the_constructors(key: str, value: Any) -> None:
    net = model()
    optimizer = Muon.for_model(net, 0.02)
    file = copy.deepcopy(optimizer.state_dict())
    i = next(i for i, group in enumerate(optimizer.param_groups) if group["algorithm"] == "lmo")
    kept = optimizer.param_groups[i][key]
    file["param_groups"][i][key] = value
    with pytest.warns(UserWarning, match=rf"made with {key} {value}; keeping {kept} \(.*\)"):
        optimizer.load_state_dict(file)
    assert optimizer.param_groups[i][key] == kept


@pytest.mark.parametrize("given", [{}, {"model": 1}, 5, {"state": {}}])
def test_what_is_no_state_dict_is_said(given: Any) -> None:
    with pytest.raises(ValueError, match="has the entries state and param_groups"):
        Muon.for_model(model(), 0.02).load_state_dict(given)


# others' --------------------------------------------------------------------------------------------------------------


@needs_torch_muon
@pytest.mark.parametrize("adjust", [None, "match_rms_adamw"])
def test_the_pair_of_torch(adjust: str | None) -> None:
    source, ours = model(), model()
    hidden, rest = named(source, True), named(source, False)
    muon = torch.optim.Muon([p for _, p in hidden], lr=0.03, momentum=0.9, weight_decay=0.05, adjust_lr_fn=adjust)
    adamw = torch.optim.AdamW([p for _, p in rest], lr=0.002, betas=(0.8, 0.98), eps=1e-7, weight_decay=0.02)
    train(source, [muon, adamw], 5)
    ours.load_state_dict(source.state_dict())
    optimizer = Muon.for_model(ours, 0.5, ns_steps=5, adjust_lr_fn=adjust)
    load_foreign(optimizer, through_disk(muon.state_dict()), [n for n, _ in hidden])
    load_foreign(optimizer, through_disk(adamw.state_dict()), [n for n, _ in rest])
    for group in optimizer.param_groups:
        wanted = (0.03, 0.9, 0.05) if group["algorithm"] == "lmo" else (0.002, 0.8, 0.02)
        assert (group["lr"], group["momentum"], group["weight_decay"]) == wanted
        assert group["algorithm"] == "lmo" or (group["beta2"], group["eps"]) == (0.98, 1e-7)
    same_afterwards(source, [muon, adamw], ours, optimizer)


@needs_torch_muon
def test_names_in_the_file_are_enough() -> None:
    source, ours = model(), model()
    muon = torch.optim.Muon(named(source, True), lr=0.03)
    train(source, [muon], 3)
    optimizer = Muon.for_model(ours, 0.5, ns_steps=5)
    load_foreign(optimizer, muon.state_dict())
    for name, p in named(ours, True):
        theirs = muon.state[dict(named(source, True))[name]]["momentum_buffer"]
        assert torch.equal(optimizer.state[p]["momentum_buffer"], theirs)


@needs_torch_muon
def test_other_coefficients_and_scales_are_said() -> None:
    net = model()
    muon = torch.optim.Muon([p for _, p in named(net, True)], ns_steps=3, adjust_lr_fn="match_rms_adamw")
    train(net, [muon], 1)
    with pytest.warns(UserWarning, match="keeping") as caught:
        load_foreign(Muon.for_model(net, 0.02), muon.state_dict(), [n for n, _ in named(net, True)])
    said = " ".join(str(w.message) for w in caught)
    assert "made with ball spectral(polar=polynomial" in said
    assert "made with scale match_rms_adamw; keeping original" in said


@pytest.fixture
def group_of_one() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def keller_jordan(net: nn.Module, kind: str) -> tuple[Any, list[str]]:
    muon = pytest.importorskip("muon", reason="needs the package muon-optimizer")
    hidden, rest = named(net, True), named(net, False)
    groups = [
        {"params": [p for _, p in rest], "lr": 0.002, "betas": (0.8, 0.95), "weight_decay": 0.01, "use_muon": False},
        {"params": [p for _, p in hidden], "lr": 0.03, "momentum": 0.9, "weight_decay": 0.02, "use_muon": True},
    ]
    return getattr(muon, kind)(groups), [n for n, _ in (*rest, *hidden)]


@pytest.mark.parametrize("kind", ["SingleDeviceMuonWithAuxAdam", "MuonWithAuxAdam"])
@pytest.mark.usefixtures("group_of_one")
def test_keller_jordans(kind: str) -> None:
    """One sorts its matrices by size, the other does not; Adam's count of steps decides the size of its next update."""
    source, ours = model(), model()
    optimizer, names = keller_jordan(source, kind)
    train(source, [optimizer], 5)
    ours.load_state_dict(source.state_dict())
    mine = Muon.for_model(ours, 0.5, ns_steps=5)
    load_foreign(mine, through_disk(optimizer.state_dict()), names)
    theirs = {n: optimizer.state[p] for n, p in source.named_parameters()}
    for name, p, group in mine.named():
        if group["algorithm"] == "lmo":
            assert torch.equal(mine.state[p]["momentum_buffer"], theirs[name]["momentum_buffer"])
        else:
            assert float(mine.state[p]["step"]) == theirs[name]["step"] == 5
    same_afterwards(source, [optimizer], ours, mine)


@pytest.mark.usefixtures("group_of_one")
def test_equal_shapes_are_never_guessed() -> None:
    """With every matrix of one shape but one, both orders may fit: then the caller has to say which it was."""
    net = nn.ModuleDict({"a": nn.Linear(4, 6), "b": nn.Linear(6, 4), "c": nn.Linear(4, 6), "out": nn.Linear(4, 2)})
    muon = pytest.importorskip("muon", reason="needs the package muon-optimizer")
    names = ["b.weight", "a.weight", "c.weight"]
    matrices = [net[n[0]].weight for n in names]
    source = muon.Muon(list(matrices))
    for i, p in enumerate(matrices):
        p.grad = torch.full_like(p, i + 1.0)
    source.step()
    empty = copy.deepcopy(source.state_dict())
    empty["state"] = {}
    with pytest.raises(ValueError, match="pass sorted_by_size=True"):
        load_foreign(Muon.for_model(net, 0.02), empty, names)
    for way in (None, True):
        optimizer = Muon.for_model(net, 0.02)
        load_foreign(optimizer, source.state_dict(), names, sorted_by_size=way)
        for p in matrices:
            assert torch.equal(optimizer.state[p]["momentum_buffer"], source.state[p]["momentum_buffer"])
    with pytest.raises(ValueError, match=r"momentum_buffer of b.weight has shape \(6, 4\)"):
        load_foreign(Muon.for_model(net, 0.02), source.state_dict(), names, sorted_by_size=False)


def refusals() -> list[Any]:
    def sgd(net: nn.Module) -> Any:
        return torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)

    def amsgrad(net: nn.Module) -> Any:
        return torch.optim.AdamW(net.parameters(), 0.1, amsgrad=True)

    def coupled(net: nn.Module) -> Any:
        return torch.optim.Adam(net.parameters(), 0.1, weight_decay=0.1)

    def ours(net: nn.Module) -> Any:
        return Muon.for_model(net, 0.1)

    def rprop(net: nn.Module) -> Any:
        return torch.optim.Rprop(net.parameters())

    return [
        (sgd, "a sum of gradients"),
        (amsgrad, "amsgrad"),
        pytest.param(
            *(coupled, "decouples it"),
            marks=pytest.mark.skipif(
                "decoupled_weight_decay" not in torch.optim.Adam([torch.zeros(1)]).defaults,
                reason="this torch's Adam and AdamW save the same options",
            ),
        ),
        (ours, "load it with optimizer.load_state_dict"),
        (rprop, "neither Muon's nor AdamW's"),
    ]


@pytest.mark.parametrize(("make", "words"), refusals())
def test_what_means_something_else_is_refused(make: Any, words: str) -> None:
    net = model()
    names = [n for n, _ in net.named_parameters()]
    with pytest.raises(ValueError, match=words):
        load_foreign(Muon.for_model(net, 0.02), make(net).state_dict(), names)


@needs_torch_muon
def test_names_that_do_not_fit_are_said() -> None:
    net = model()
    hidden = named(net, True)
    muon = torch.optim.Muon([p for _, p in hidden])
    optimizer = Muon.for_model(net, 0.02)
    names = [n for n, _ in hidden]
    for given, words in (
        (None, "pass names="),
        (names[1:], "given, the checkpoint has"),
        (["x", *names[1:]], "'x' is not a parameter"),
        ([names[1], *names[1:]], "stands there twice"),
    ):
        with pytest.raises(ValueError, match=words):
            load_foreign(optimizer, muon.state_dict(), given)
    with pytest.raises(ValueError, match=r"load_foreign\(optimizer, state_dict, names"):
        optimizer.load_state_dict(muon.state_dict())


def test_a_file_of_adamw_alone_is_refused_at_load() -> None:
    """Positions of an AdamW over all parameters are not those of for_model."""
    net = model()
    adamw = torch.optim.AdamW(net.parameters(), 0.01)
    train(net, [adamw], 1)
    with pytest.raises(ValueError, match="load_foreign"):
        Muon.for_model(net, 0.02).load_state_dict(adamw.state_dict())
    with pytest.warns(UserWarning, match="start with empty state: blocks.0.q.weight"):
        load_foreign(Muon.for_model(net, 0.02), adamw.state_dict(), [n for n, _ in net.named_parameters()])


@needs_torch_muon
def test_tensors_are_not_shared_with_the_file() -> None:
    net = model()
    muon = torch.optim.Muon([p for _, p in named(net, True)])
    train(net, [muon], 1)
    file = muon.state_dict()
    optimizer = quiet(lambda: Muon.for_model(net, 0.02))
    quiet(lambda: load_foreign(optimizer, file, [n for n, _ in named(net, True)]))
    before: Tensor = file["state"][0]["momentum_buffer"].clone()
    train(net, [optimizer], 1)
    assert torch.equal(file["state"][0]["momentum_buffer"], before)


def test_an_oracle_of_ones_own_loads() -> None:
    """Its text cannot be read, and need not be: the constructor's value is kept."""
    from test_tune_checkpoints import Own

    net = model()
    matrices = [p for _, p in named(net, True)]
    optimizer = Muon(matrices, polar=Own())
    train(net, [optimizer], 1)
    other = Muon(matrices, polar=Own())
    other.load_state_dict(through_disk(optimizer.state_dict()))
    assert all(torch.equal(other.state[p]["momentum_buffer"], optimizer.state[p]["momentum_buffer"]) for p in matrices)
    train(net, [other], 1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda f: f["state"][0].update(step=torch.tensor([1.0, 2.0])), "must be a count of steps"),
        (lambda f: f["state"][0].update(step="x"), "must be a count of steps"),
        (lambda f: f["state"][0].update(momentum_buffer=5.0, exp_avg=5.0), "not a tensor with its data"),
        (lambda f: f["state"].update({0: 5}), "is not a dict by name"),
        (lambda f: f["param_groups"][0].update(turn="x"), "turn of the checkpoint must be a number"),
        (lambda f: f["param_groups"][0].update(lr=[1, 2]), "lr of the checkpoint must be a number"),
        (lambda f: f["param_groups"][0].pop("params"), "has no list of parameters"),
        (lambda f: f["param_groups"][1].update(param_names=f["param_groups"][0]["param_names"]), "param"),
        (lambda f: f["param_groups"].append(5), "is not a dict of options"),
    ],
)
def test_damaged_files_are_refused_before_anything_changes(change: Any, words: str) -> None:
    net = model()
    optimizer = Muon.for_model(net, 0.02)
    train(net, [optimizer], 1)
    file = copy.deepcopy(optimizer.state_dict())
    change(file)
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(ValueError, match=words):
        optimizer.load_state_dict(file)
    assert str(before) == str(optimizer.state_dict())


def test_a_file_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    net = model()
    optimizer = Muon.for_model(net, 0.02)
    train(net, [optimizer], 1)
    checked: list[int] = []
    monkeypatch.setattr(structure, "check_group", lambda i, _: checked.append(i))
    optimizer.load_state_dict(optimizer.state_dict())
    assert checked == list(range(len(optimizer.param_groups)))
    for wrong in (5, [], {}, {"state": {}}):
        with pytest.raises(ValueError, match="has the entries state and param_groups"):
            optimizer.load_state_dict(wrong)  # type: ignore[arg-type]


# found by the fuzzer --------------------------------------------------------------------------------------------------


def auxiliary(net: nn.Module, **changes: Any) -> tuple[dict[str, Any], list[str]]:
    """A file like KellerJordan's with auxiliary Adam, whose Adam group is changed; None leaves an entry out."""
    hidden, rest = named(net, True), named(net, False)
    adam = {"use_muon": False, "lr": 0.002, "betas": (0.8, 0.95), "eps": 1e-10, "weight_decay": 0.01, **changes}
    groups = [
        {**{k: v for k, v in adam.items() if v is not None}, "params": list(range(len(rest)))},
        {"use_muon": True, "lr": 0.03, "momentum": 0.9, "weight_decay": 0.02},
    ]
    groups[1]["params"] = [len(rest) + k for k in range(len(hidden))]
    moments = {k: {"exp_avg": p.detach(), "exp_avg_sq": p.detach() ** 2, "step": 3} for k, (_, p) in enumerate(rest)}
    buffers = {len(rest) + k: {"momentum_buffer": p.detach()} for k, (_, p) in enumerate(hidden)}
    return {"state": moments | buffers, "param_groups": groups}, [n for n, _ in (*rest, *hidden)]


def test_a_number_with_the_name_of_an_entry_of_ours_changes_nothing() -> None:
    net = model()
    file, names = auxiliary(net, use_muon=None, algorithm=False)
    optimizer = Muon.for_model(net, 0.5)
    load_foreign(optimizer, file, names, sorted_by_size=False)
    assert {g["lr"] for g in optimizer.param_groups if g["algorithm"] == "adamw"} == {0.002}


def test_a_number_as_betas_of_our_own_file_changes_nothing() -> None:
    net = model()
    optimizer = Muon.for_model(net, 0.5)
    train(net, [optimizer], 1)
    file = optimizer.state_dict()
    file["param_groups"][-1]["betas"] = False
    optimizer.load_state_dict(file)
    assert all("betas" not in group for group in optimizer.param_groups)
    train(net, [optimizer], 1)


@pytest.mark.parametrize("option", ["lr", "eps", "weight_decay"])
def test_an_option_that_is_missing_is_named(option: str) -> None:
    net = model()
    file, names = auxiliary(net, **{option: None})
    with pytest.warns(UserWarning, match=f"checkpoint has no {option} for adamw"):
        load_foreign(Muon.for_model(net, 0.5), file, names, sorted_by_size=False)


def test_options_of_another_algorithm_are_named() -> None:
    net = model()
    file, names = auxiliary(net, use_muon=True, momentum=0.9)
    with pytest.warns(UserWarning, match="options of adamw.* those of the checkpoint belong to another algorithm"):
        load_foreign(Muon.for_model(net, 0.5), file, names, sorted_by_size=False)


def test_moments_without_their_count_are_refused_whatever_the_group_says() -> None:
    net = model()
    file, names = auxiliary(net, use_muon=True, momentum=0.9)
    del file["state"][0]["step"]
    with pytest.raises(ValueError, match="moments of AdamW without the number of its steps"):
        load_foreign(Muon.for_model(net, 0.5), file, names, sorted_by_size=False)


def test_a_refusal_is_one_line() -> None:
    with pytest.raises(ValueError, match=r"got dict with a\?b: pass what"):
        Muon.for_model(model(), 0.5).load_state_dict({"a\nb": None})


@needs_torch_muon
def test_torchs_matrices_are_never_taken_for_sorted() -> None:
    net = nn.ModuleDict({"a": nn.Linear(4, 6), "b": nn.Linear(6, 6), "out": nn.Linear(6, 2)})
    source = torch.optim.Muon([net["a"].weight, net["b"].weight])
    for p in net.parameters():
        p.grad = torch.ones_like(p)
    source.step()
    file = source.state_dict()
    file["state"] = {1: file["state"][0]}
    with pytest.raises(ValueError, match=r"momentum_buffer of b.weight has shape \(6, 4\)"):
        load_foreign(Muon.for_model(net, 0.02), file, ["a.weight", "b.weight"])
