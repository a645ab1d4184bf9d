"""Options of stages: text, one sentence for what makes no sense, telemetry, what explain and loggers say, launches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from inexact_muon import Muon, explain, lmo
from inexact_muon.inexactness import measure
from inexact_muon.optim import (
    RMS,
    EF21Muon,
    LMOOptimizer,
    RowMoment,
    Scion,
    SecondMoment,
    Signed,
    flat_stats,
    stages,
    to_torch,
)
from inexact_muon.optim.stages import AFTER, BEFORE, After, Before
from inexact_muon_lab.plan.models import KNOWN, Weight, from_config
from inexact_muon_lab.plan.step import Case, Layout, record
from torch_features import needs_fake_collectives


def weight() -> nn.Parameter:
    p = nn.Parameter(torch.randn(6, 9, generator=torch.Generator().manual_seed(0)))
    p.grad = torch.randn(6, 9, generator=torch.Generator().manual_seed(1))
    return p


@pytest.mark.parametrize("kind", [Before, After])
def test_text_and_values_are_inverse(kind: type) -> None:
    made = tuple(stage() for stage in (BEFORE if kind is Before else AFTER).values())
    for some in ((), made[:1], made):
        assert stages.parse(stages.text(some), kind) == some
        assert stages.parse(list(map(str, some)), kind) == some
    assert stages.parse(None, kind) == stages.parse("none", kind) == ()


def test_a_group_has_its_own_stages_and_they_are_plain_data() -> None:
    a, b = weight(), weight()
    optimizer = Muon([{"params": [a], "after": (RowMoment(0.9), "rms:0.5")}, {"params": [b]}], before=Signed())
    first, second = optimizer.param_groups
    assert (first["after"], second["after"]) == (
        "row-moment(beta2=0.9, eps=1e-08, side=rows) + rms(value=0.5)",
        "none",
    )
    assert first["before"] == second["before"] == "sign()"
    assert optimizer.after(first) == (RowMoment(0.9), RMS(0.5))
    optimizer.step()
    assert "row_moment" in optimizer.state[a]
    assert "row_moment" not in optimizer.state[b]


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "unknown": ({"after": "row-momnet"}, "did you mean 'row-moment'"),
    "other side": ({"after": "sign"}, "sign comes before the oracle: write before='sign'"),
    "other kind": ({"after": SecondMoment()}, "second-moment comes before the oracle: write before='second-moment'"),
    "no stage": ({"after": 0.2}, "after takes stages or their text, such as after='row-moment', got 0.2"),
    "twice": ({"after": "rms:0.1 + rms:0.2"}, "names a stage twice"),
    "beta2": ({"after": "row-moment(beta2=1.0)"}, r"beta2 must lie in \[0, 1\)"),
    "side": ({"after": "row-moment(side=shorter)"}, 'row-moment: side must be "rows" or "longer", got \'shorter\''),
    "rms": ({"after": "rms:0.0"}, "value must be positive"),
    "decay": ({"decay": "cautios"}, "decay must be decoupled or independent or cautious"),
    "sphere and decay": ({"fixed_norm": True}, "fixed_norm=True keeps the norm that weight_decay would change"),
    "first lr": ({"decay": "independent", "lr": 0.0}, "relative to the first lr, which must be positive"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_makes_no_sense_is_one_sentence(name: str) -> None:
    options, sentence = BAD[name]
    with pytest.raises((ValueError, TypeError), match=sentence):
        Muon([weight()], **options)


@pytest.mark.parametrize("option", [{"after": "rms"}, {"before": "sign"}, {"fixed_norm": True}, {"decay": "cautious"}])
def test_what_does_not_go_together_is_one_sentence(option: dict[str, Any]) -> None:
    (name,) = option
    with pytest.raises(ValueError, match=f"constrained=True takes steps to points of a ball: leave out {name}"):
        Scion([weight()], constrained=True, **option)
    with pytest.raises(ValueError, match=f"AdamW has no oracle: leave out {name}"):
        Muon([{"params": [weight()], "algorithm": "adamw", "weight_decay": 0.0, **option}])
    with pytest.raises(ValueError, match=f"EF21Muon has no stages around its oracle: leave out {name}"):
        EF21Muon([{"params": [weight()], "weight_decay": 0.0, **option}])
    with pytest.raises(ValueError, match=r"torch.optim.Muon cannot continue"):
        to_torch(Muon([weight()], weight_decay=0.0, ns_steps=5, **option))
    if name != "decay":
        with pytest.raises(ValueError, match=f"is made of the oracle's answer as it is: leave out {name}"):
            Scion([weight()], length="clipped", **option)
    else:
        Scion([weight()], length="clipped", **option).step()


@pytest.mark.parametrize("options", [{"after": "row-moment"}, {"before": "sign"}, {"after": "rms:3.0"}, {}], ids=str)
def test_telemetry_has_the_answer_and_what_is_applied(options: dict[str, Any]) -> None:
    p = weight()
    ball = lmo.parse("spectral(polar=jordan(steps=2, dtype=float64))")
    m = 0.05 * p.grad.double() * (1 + 0.95)  # type: ignore[union-attr]
    given = m.sign() if "before" in options else m
    z = -ball(given)
    applied = z.clone()
    if "row" in str(options):
        applied = z / z.square().mean(1, keepdim=True).sqrt()
        applied = applied * z.norm() / applied.norm()
    p.data, p.grad = p.data.double(), p.grad.double()  # type: ignore[union-attr]
    optimizer = Muon([p], polar="jordan(steps=2, dtype=float64)", sample_every=1, **options)
    optimizer.step()
    oracle, after = (
        measure(ball, *pair, exact=True) for pair in ((given, z), (m, applied)) for pair in [(pair[0], -pair[1])]
    )
    for found, expected in ((optimizer.inexactness(), oracle), (optimizer.inexactness(applied=True), after)):
        assert found["0"].gap == pytest.approx(float(expected.gap), abs=1e-6)
        assert found["0"].overshoot == pytest.approx(float(expected.overshoot), abs=1e-6)
    row, flat = optimizer.stats()["0"], flat_stats(optimizer)
    assert ("gap_applied" in row) == ("optimizer/gap_applied/worst" in flat) == bool(options)
    if options:
        assert flat["optimizer/overshoot_applied/worst"] == pytest.approx(float(after.overshoot), abs=1e-6)


def test_update_sizes_are_those_of_the_step() -> None:
    p = weight()
    old = p.detach().clone()
    optimizer = Muon([p], 0.1, 0.0, after="row-moment + rms:0.3", adjust_lr_fn="none", sample_every=1)
    optimizer.step()
    row = optimizer.stats()["0"]
    assert row["update_rms"] == pytest.approx(0.03, rel=1e-5)
    assert row["update_ratio"] == pytest.approx(float((p.detach() - old).norm() / old.norm()), rel=1e-5)


def test_explain_names_the_stages() -> None:
    p, q = weight(), weight()
    optimizer = Muon([{"params": [p], "after": "row-moment", "decay": "cautious"}, {"params": [q]}], sample_every=1)
    optimizer.step()
    text = str(explain(optimizer))
    assert "1 parameter with stages: after row-moment(beta2=0.95), cautious decay." in text
    assert "gap_applied" in text
    assert "stages" not in str(explain(Muon([q])))


_LLAMA = {"hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": 4, "vocab_size": 1000}
_HEADS = {"num_attention_heads": 8, "num_key_value_heads": 2}
LLAMA = from_config({"model_type": "llama", **_LLAMA, **_HEADS}, "llama", 1000, "Llama 2's ratio of widths").weights
ALIKE = [Weight("transformer.h.#.mlp.c_fc.weight", (256, 256), count=24)]
MODELS = {"gpt2": (KNOWN["gpt2-124m"].weights, 3), "llama": (LLAMA, 4), "alike": (ALIKE, 1)}
"""Name -> (weights, shapes of its matrices: of GPT-2 768 x 768, 3072 x 768, 768 x 3072)"""

LAYOUTS: dict[str, tuple[Layout, str]] = {
    "alone": (Layout(1), "auto"),
    "ddp 8": (Layout(8, copies=8), "owner-rank"),
    "fsdp 8": (Layout(8), "auto"),
    "fsdp 4 x tp 2": (Layout(8, tp=2), "auto"),
}
"""Name -> (layout, strategy)"""

OPTIONS: dict[str, dict[str, Any]] = {
    "second moment": {"before": "second-moment"},
    "sign": {"before": "sign"},
    "row moment": {"after": "row-moment"},
    "longer side": {"after": "row-moment(side=longer)"},
    "entry moment": {"after": "entry-moment"},
    "rms": {"after": "rms"},
    "cautious": {"decay": "cautious"},
    "independent": {"decay": "independent"},
    "fixed norm": {"fixed_norm": True, "weight_decay": 0.0},
}


def launches(model: str, name: str, **options: Any) -> int:
    """Launches of a later step."""
    ((_, recorder),) = record(Case(MODELS[model][0], *LAYOUTS[name], options=options)).steps
    return recorder.launches


@pytest.mark.slow
@needs_fake_collectives
@pytest.mark.parametrize(("model", "name"), [*(("gpt2", name) for name in LAYOUTS), ("llama", "fsdp 4 x tp 2")])
def test_a_stage_adds_few_launches_for_each_kind_of_matrix(model: str, name: str) -> None:
    plain = launches(model, name)
    for stage, options in OPTIONS.items():
        assert launches(model, name, **options) - plain <= 12 * MODELS[model][1], stage


@pytest.mark.slow
@needs_fake_collectives
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_stage_adds_few_launches_for_a_single_kind(name: str) -> None:
    plain = launches("alike", name)
    for stage, options in OPTIONS.items():
        assert launches("alike", name, **options) - plain <= 12, stage


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_vectors_and_parameters_without_entries_have_stages(options: dict[str, Any]) -> None:
    vector, empty, flat = nn.Parameter(torch.ones(5)), nn.Parameter(torch.ones(0, 4)), nn.Parameter(torch.ones(3, 4))
    for p in (vector, empty, flat):
        p.grad = torch.full_like(p, 0.5)
    optimizer = LMOOptimizer([vector, empty, flat], 0.1, 0.0, ball="sign", **options)
    optimizer.step()
    assert float(vector.detach().std()) == pytest.approx(0.0, abs=1e-6)
    assert bool(vector.isfinite().all())
    assert empty.shape == (0, 4)
    if "fixed_norm" in options:
        torch.testing.assert_close(vector.detach(), torch.ones(5))  # the direction is W's own
    else:
        assert float(vector.detach()[0]) < 1.0
