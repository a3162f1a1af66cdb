"""Recorded workloads: readers that account for every row, and request sequences made of them.

:func:`training.workloads.traces.read.read_trace` opens any of the three kinds.
"""
