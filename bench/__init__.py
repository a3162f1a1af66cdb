"""Load generation and latency reports."""
