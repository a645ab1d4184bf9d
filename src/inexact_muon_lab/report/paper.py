"""Numbers printed in the paper, shown beside ours. 124M parameters, FineWeb, 12,000 steps."""

from __future__ import annotations

LOSS = {1: 3.0675, 2: 3.0316, 3: 3.0109, 4: 3.0058, 5: 3.0036, 6: 3.0037, 7: 3.0029, 8: 3.0023}
"""Table 1: final validation loss by Polar Express iterations."""
GAIN = {count: LOSS[1] - loss for count, loss in LOSS.items()}
"""How much lower the loss is than after one iteration."""
MINUTES = {1: 652.2, 2: 668.8, 3: 660.4, 4: 665.8, 5: 655.7, 6: 663.1, 7: 668.8, 8: 675.0}
"""Table 1: training time."""
LMO_ERROR = {1: 23.6, 8: 1.7}
"""Figure 4 and its text: the LMO error summed over layers at the end of training."""
STEPS, SIZE = 12_000, "124M"
LR_RATIO = 0.60
"""Figure 1b: the best step size with 2 Polar Express iterations over that with 5."""
