"""Policies: pure functions of snapshot and queries, heuristic or learned, and the pipeline around them."""
