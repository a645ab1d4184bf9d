"""For experiments with the theory: oracles with a prescribed error or map."""
