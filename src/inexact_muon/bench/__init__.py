"""Speed and accuracy side by side: oracles, whole steps, growth and memory, as ratios within one process."""
