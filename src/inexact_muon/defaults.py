"""Defaults that the optimizer and the lab share. Imports nothing, so that a run spec needs no torch."""

ADAMW_LR = 3e-3
"""lr of the AdamW groups of `Muon.for_model`, and of the lab's Muon.

By the study in docs/choose-lr.md: 1e-2 is a little better at widths 96 and 192, 3e-4 clearly worse; the smaller of the
two good values, since three times 1e-2 already costs more at the larger width.
"""
