"""What the oldest supported torch lacks: a test that needs it is skipped and says so."""

from __future__ import annotations

import pytest
import torch

HAS_MUON = hasattr(torch.optim, "Muon")
NO_MUON = "this torch has no torch.optim.Muon (2.9 or newer)"
needs_torch_muon = pytest.mark.skipif(not HAS_MUON, reason=NO_MUON)
needs_grad_dtype = pytest.mark.skipif(
    not hasattr(torch.Tensor, "grad_dtype"),
    reason="this torch has no Tensor.grad_dtype",
)
