"""Environments: the simulator as something that policies act in, one slot at a time."""
