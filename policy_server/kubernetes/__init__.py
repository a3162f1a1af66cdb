"""Kubernetes: its objects, and the components of it that ask for decisions."""
