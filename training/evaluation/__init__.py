"""Evaluation on held-out seeds and windows: every policy on the same systems and requests, with intervals."""
