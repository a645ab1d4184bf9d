"""Momentum matrices of saved optimizers, read without running anything that a file holds."""
