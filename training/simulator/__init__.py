"""Event-driven simulator of edge-cloud systems; many systems advance as one batch."""
