"""Cost on paper at scale: what an oracle takes in flops, bytes and memory on many devices. Never imports torch.

Nothing here was timed on a GPU: every number follows from shapes, flop counts and the rates that the caller states.
"""
