"""What the oldest supported torch lacks: a test that needs it is skipped and says so."""

from __future__ import annotations

import pytest
import torch
import torch.distributed  # registers the collectives

HAS_MUON = hasattr(torch.optim, "Muon")
NO_MUON = "this torch has no torch.optim.Muon (2.9 or newer)"
needs_torch_muon = pytest.mark.skipif(not HAS_MUON, reason=NO_MUON)
needs_grad_dtype = pytest.mark.skipif(
    not hasattr(torch.Tensor, "grad_dtype"),
    reason="this torch has no Tensor.grad_dtype",
)
needs_fake_collectives = pytest.mark.skipif(
    not torch.ops.c10d.allreduce_.default.has_kernel_for_dispatch_key(torch._C.DispatchKey.Meta),
    reason="this torch has no collectives for fake tensors",
)
