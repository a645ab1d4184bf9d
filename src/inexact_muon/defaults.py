"""Defaults that the optimizer and the lab share. Imports nothing, so that a run spec needs no torch."""

ADAMW_LR = 3e-4
"""lr of the AdamW groups of `Muon.for_model`, and of the lab's Muon."""
