"""Modelled cost at scale: flops, bytes and memory of an oracle on many devices. Never imports torch.

Nothing was timed on a GPU: every number follows from shapes, flop counts and the given rates.
"""
