"""Benchmarks of speed and accuracy: oracles, whole steps and memory, as ratios within one process."""
