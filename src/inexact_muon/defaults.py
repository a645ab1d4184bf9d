"""Defaults shared by the optimizer and the lab. Imports nothing, so that a run spec does not need torch."""

ADAMW_LR = 3e-3
"""lr of the AdamW groups of `Muon.for_model` and of the lab's Muon.

From the study in docs/choose-lr.md: 1e-2 is slightly better at widths 96 and 192, 3e-4 clearly worse. The smaller of
the two good values, since three times 1e-2 already costs more at the larger width.
"""
