"""What exported policies are called."""

DISPATCH_BUNDLE = "kais"
JOINT_DISPATCH_BUNDLE = "kais-joint"
"""Dispatch trained together with orchestration."""
ORCHESTRATION_BUNDLE = "kais-orchestration"
