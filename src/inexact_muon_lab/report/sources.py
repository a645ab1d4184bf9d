"""Commands that produce the report's data, shown where data are missing."""

from __future__ import annotations

PAPER, BEYOND = "The paper's figures, in its order", "Beyond the paper's experiments"
"""Sections of the page."""
SWEEP = "inexact-muon sweep studies/tiny/{}.toml"
GPT_ITERATIONS = SWEEP.format("gpt-iterations")
GPT_HEATMAP = SWEEP.format("gpt-heatmap")
CNN_ITERATIONS = SWEEP.format("cnn-iterations")
CNN_STEPS = SWEEP.format("cnn-steps")
OPTIMIZERS = SWEEP.format("optimizers")
ORACLES = "inexact-muon demo"
THEORY = "python studies/theory/study.py --out FOLDER"
COTUNING = "python studies/cotuning/judge.py --out FOLDER, after the sweeps that it names"
