"""flops counts the products that are really made."""

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from cases import POLARS
from inexact_muon import polar, schedules


@pytest.mark.parametrize("name", [n for n, m in POLARS.items() if isinstance(m.map, schedules.Schedule)])
@pytest.mark.parametrize("shape", [(16, 16), (16, 20), (16, 64), (64, 16)])
@pytest.mark.parametrize("form", ["auto", "direct", "gram"])
def test_flops_of_compositions(name: str, shape: tuple[int, int], form: str) -> None:
    if form == "gram" and not POLARS[name].map.gram_dtypes:
        pytest.skip("a tilted composition has no Gram form")
    method = replace(POLARS[name], form=form)
    with FlopCounterMode(display=False) as counter:
        method(torch.randn(shape))
    assert method.flops(*shape) == counter.get_total_flops()


@pytest.mark.parametrize("method", [polar.Zolotarev(3), *(polar.Zolotarev(1, polish=d) for d in (3, 5, 9))], ids=str)
def test_flops_of_the_rational_method(method: polar.Zolotarev) -> None:
    """The products are counted; torch's counter knows nothing of Cholesky, n^3 for factor and inverse."""
    with FlopCounterMode(display=False) as counter:
        method(torch.randn(16, 40))
    assert method.flops(16, 40) == counter.get_total_flops() + method.poles * 16**3


def test_the_table_of_the_digest() -> None:
    """Five quintics, in products: direct 15, 25, 45; Gram with restarts after 2 (and 5, 8, ...)."""
    unit = 2 * 64**3
    for aspect, direct, gram in ((1, 15, 18), (2, 25, 22), (4, 45, 30)):
        found = [polar.PolarExpress(5, form=form).flops(64, 64 * aspect) / unit for form in ("direct", "gram")]
        assert found == [direct, gram]


def test_transposed_matrices_cost_the_same() -> None:
    for method in POLARS.values():
        assert method.flops(48, 16) == method.flops(16, 48) > 0
