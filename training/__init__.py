"""Offline half: workloads, simulator, networks, algorithms, evaluation and export of policies."""
