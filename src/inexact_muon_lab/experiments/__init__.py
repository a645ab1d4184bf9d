"""For experiments with the theory: oracles with a prescribed error, and the constants of the theorems along a run."""
