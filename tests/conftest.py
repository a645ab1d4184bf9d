"""One thread a worker: with two workers on two cores more threads only wait for each other. No terminal's width."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import hypothesis
import pytest
import torch

# How long an example takes says how busy the machine is, not whether the code is right.
hypothesis.settings.register_profile("no time limits", deadline=None)
hypothesis.settings.load_profile("no time limits")
torch.set_num_threads(1)
os.environ.pop("COLUMNS", None)

CPU = Path("/proc/cpuinfo")
PRODUCT = "import torch; a = torch.ones(64, 64, dtype=torch.bfloat16); a @ a"
ISA = "ONEDNN_MAX_CPU_ISA"
if ISA not in os.environ and CPU.exists() and "amx_tile" in CPU.read_text():
    # Some virtual machines announce AMX and trap its instructions, with which torch multiplies bfloat16 there.
    product = subprocess.run([sys.executable, "-c", PRODUCT], capture_output=True)
    if product.returncode == -signal.SIGILL:
        os.environ[ISA] = "AVX512_CORE_BF16"
        print(f"bfloat16 products by AMX are illegal instructions on this machine: {ISA}={os.environ[ISA]}")

TOGETHER = {
    **dict.fromkeys(("test_clients_lightning", "test_clients_models", "test_clients_trainer"), "clients"),
    **dict.fromkeys(("test_clients_training", "test_real_models", "test_layouts_compute", "test_examples"), "clients"),
    **dict.fromkeys(("test_published_models", "test_heads_compute", "test_qk_clip", "test_clients_moving"), "clients"),
    **dict.fromkeys(("test_report_browser", "test_site", "test_wheel", "test_lab_kills", "test_lab_machines")),
}
"""Files whose slow tests one worker runs (`--dist loadgroup`): they share a fixture or imports of many seconds."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        file = item.path.stem
        if file in TOGETHER and item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.xdist_group(TOGETHER[file] or file))
