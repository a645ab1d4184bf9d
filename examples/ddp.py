"""Data parallel training: torchrun --nproc-per-node 2 examples/ddp.py (gloo on CPUs; nccl is the same with GPUs)."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from inexact_muon import Muon, explain

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()

torch.manual_seed(0)  # the same start and the same data everywhere; each rank takes its share
inputs = torch.randn(512, 32)
targets = torch.tanh(inputs @ torch.randn(32, 8))
net = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 8))
model = DistributedDataParallel(net)
optimizer = Muon.for_model(model, lr=0.02, adamw={"lr": 3e-3}, weight_decay=0.0, sample_every=20)

losses = []
for _ in range(80):
    loss = nn.functional.mse_loss(model(inputs[rank::world]), targets[rank::world])
    optimizer.zero_grad()
    loss.backward()  # DDP averages gradients here, so every rank's oracle sees the same matrix
    optimizer.step()
    losses.append(loss.item())

weights = torch.cat([p.detach().flatten() for p in net.parameters()])
first, means = weights.clone(), torch.tensor(losses) / world
# Handles that live on: a thread of gloo that frees a tensor while Python ends makes torch abort.
handles = [dist.broadcast(first, 0, async_op=True), dist.all_reduce(means, async_op=True)]
for handle in handles:
    handle.wait()
assert torch.equal(weights, first), "ranks have drifted apart"
if rank == 0:
    print(explain(optimizer))
    print(f"{world} ranks hold the same weights")
    print(f"loss {means[0]:.4f} -> {means[-1]:.4f}")
dist.destroy_process_group()
