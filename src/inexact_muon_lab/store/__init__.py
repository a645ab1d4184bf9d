"""Results of runs: outcomes, curves, the index, and packed evidence."""
