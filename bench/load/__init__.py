"""Load generators and what they measure."""
