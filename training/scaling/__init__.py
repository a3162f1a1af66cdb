"""Vertical scaling: a microservice application with CPU quotas and memory limits, and the training of its policies."""
