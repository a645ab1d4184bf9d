"""Momentum matrices of saved optimizers, read without executing code from a file."""
