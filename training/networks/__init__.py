"""Torch modules. Each is scale-free: shared per node, access point, link and candidate, never sized by the system."""
