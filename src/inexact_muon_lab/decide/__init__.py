"""Deciding claims: pilot seeds first, then the seeds and cells that verdicts need, in order of cost."""
