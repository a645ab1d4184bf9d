"""The lab: run specs, studies, a crash-safe store, data, problems, a trainer and sweeps.

`spec`, `study`, `store` and their dependencies never import torch, so that listing and reporting start fast.
"""
