"""The device of a benchmark, and the versions that its ratios depend on."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from inexact_muon_lab.bench.peers import PEERS


def device_of(text: str) -> torch.device:
    """The device with this name, if this machine can compute on it.

    Raises:
        ValueError: there is no such device, or it cannot compute.
    """
    try:
        device = torch.device(text)
        if device.type == "meta" or not torch.ones(1, device=device).item():
            raise RuntimeError("tensors on it have no data")
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(
            f"this machine has no usable device {text!r} ({reason}): leave --device out, or name another"
        ) from None
    return device


def native_bfloat16() -> bool:
    """Whether this CPU has bfloat16 products and oneDNN uses them; otherwise they are emulated and much slower.

    Both are checked: ONEDNN_MAX_CPU_ISA=AVX2 only disables the library, and a CPU with AVX512 may lack bfloat16.
    """
    library = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: True)
    return any("bf16" in name and bool(has) for name, has in capabilities().items()) and bool(library())


def capabilities() -> dict[str, Any]:
    """What torch reports about this CPU; torch 2.6 only reports the AVX512 instructions for bfloat16."""
    known = hasattr(torch.cpu, "get_capabilities")
    return dict(torch.cpu.get_capabilities()) if known else {"avx512_bf16": torch.cpu._is_avx512_bf16_supported()}


def machine(device: torch.device, peers: bool = False) -> dict[str, Any]:
    """Device, versions and settings that the ratios depend on."""
    facts: dict[str, Any] = {"torch": torch.__version__, "python": platform.python_version()}
    if device.type == "cpu":
        facts |= {
            "device": str(capabilities().get("cpu_name", platform.machine())),
            "threads": torch.get_num_threads(),
            "bfloat16 products": "native" if native_bfloat16() else "emulated",
            "instructions": torch.backends.cpu.get_cpu_capability(),
        }
    else:
        facts["device"] = str(device)
    if device.type == "cuda":
        facts |= {
            "device": torch.cuda.get_device_name(device),
            "capability": ".".join(map(str, torch.cuda.get_device_capability(device))),
            "cuda": str(torch.version.cuda or torch.version.hip),
        }
    if peers:
        versions = {peer.package: version_of(peer.package) for peer in PEERS.values() if peer.package not in facts}
        facts |= {package: known for package, known in versions.items() if known}
    return facts


def version_of(package: str) -> str:
    """The installed version of a package; "" if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
