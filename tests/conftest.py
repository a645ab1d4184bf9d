"""One thread a worker: with two workers on two cores more threads only wait for each other. No terminal's width."""

import os

import torch

torch.set_num_threads(1)
os.environ.pop("COLUMNS", None)
