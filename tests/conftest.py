"""One thread a worker: with two workers on two cores more threads only wait for each other. No terminal's width."""

import os

import pytest
import torch

torch.set_num_threads(1)
os.environ.pop("COLUMNS", None)

TOGETHER = {
    **dict.fromkeys(("test_clients_lightning", "test_clients_models", "test_clients_trainer"), "clients"),
    **dict.fromkeys(("test_clients_training", "test_real_models", "test_layouts_compute", "test_examples"), "clients"),
    **dict.fromkeys(("test_report_browser", "test_site", "test_wheel", "test_lab_kills", "test_lab_machines")),
}
"""Files whose slow tests one worker runs (`--dist loadgroup`): they share a fixture or imports of many seconds."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        file = item.path.stem
        if file in TOGETHER and item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.xdist_group(TOGETHER[file] or file))
