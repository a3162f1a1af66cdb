"""A pair of tiny halves for tests of joint training."""

from __future__ import annotations

from training.algorithms import cmmac, gpg
from training.algorithms.cmmac import CmmacConfig
from training.algorithms.gpg import GpgConfig
from training.algorithms.two_scales import JointState

DISPATCH = CmmacConfig(
    updates=1, systems=1, rollout_slots=4, tail_slots=8, settle_slots=4, rollouts_per_batch=1, presets=("testbed-40",),
    load_range=(0.1, 0.2), embedding=8, context=8,
)  # fmt: skip
ORCHESTRATION = GpgConfig(
    updates=1, scenarios=1, repeats=2, presets=("testbed-40",), load_range=(0.05, 0.1), frames=1, embedding=8, hidden=8,
)  # fmt: skip


def tiny_pair() -> JointState:
    """Untrained halves that count as trained."""
    dispatch, orchestration = cmmac.initial_state(DISPATCH), gpg.initial_state(ORCHESTRATION)
    dispatch.update, dispatch.decisions = 1, 1
    orchestration.update, orchestration.frames = 1, 1
    return JointState(DISPATCH, dispatch, ORCHESTRATION, orchestration)
