"""The lab: run specs, studies, a store that survives anything, data, problems, a trainer and sweeps.

`spec`, `study`, `store` and what they need never import torch: listing and reporting start fast.
"""
