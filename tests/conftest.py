"""One thread a worker: with two workers on two cores more threads only wait for each other."""

import torch

torch.set_num_threads(1)
