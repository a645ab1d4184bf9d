"""Benchmarks of speed and accuracy: oracles, whole steps, growth and memory, as ratios within one process."""
