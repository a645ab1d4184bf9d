"""The page's QK-clip: heads above the limit are brought to it, the others are left alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from inexact_muon import Muon
from pages import ROOT, blocks, run_block

LIMIT = 5.0


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    (block,) = (b for b in blocks(ROOT / "docs/use-with.md") if "def qk_clip" in b.text)
    space: dict[str, Any] = {"__name__": "__page__"}
    assert run_block(block, space)
    return space


def largest(attention: Any, x: torch.Tensor) -> torch.Tensor:
    attention.largest = torch.zeros(attention.heads)
    attention(x)
    return attention.largest


def test_logits_are_clipped_head_by_head(page: dict[str, Any]) -> None:
    torch.manual_seed(0)
    attention, x = page["Attention"](width=32, heads=4), torch.randn(2, 8, 32)
    with torch.no_grad():
        attention.q.weight[:16].mul_(30.0)  # the first two heads
    optimizer = Muon([attention.q.weight, attention.k.weight], lr=0.0, weight_decay=0.0)
    qk_clip: Callable[..., Any] = page["qk_clip"]
    optimizer.register_step_post_hook(qk_clip(attention, LIMIT))
    before = largest(attention, x)
    assert (before > LIMIT).tolist() == [True, True, False, False]
    attention(x).sum().backward()
    optimizer.step()
    after = largest(attention, x)
    assert after[:2].tolist() == pytest.approx([LIMIT, LIMIT], rel=1e-5)
    assert torch.equal(after[2:], before[2:])
