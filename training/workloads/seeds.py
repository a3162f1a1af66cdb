"""Seeds of training and of held-out evaluation: two ranges that never meet."""

from __future__ import annotations

from training.workloads.columns import WorkloadError

TRAINING_SEEDS = range(0, 1_000_000)
"""Seeds that training and model selection may use."""

HELD_OUT_SEEDS = range(1_000_000_000, 1_001_000_000)
"""Seeds that only reported evaluations use."""


def training_seed(index: int) -> int:
    """The training seed at ``index``, 0 to 999 999.

    Raises:
        WorkloadError: ``index`` is outside the range.
    """
    return _seed_at(TRAINING_SEEDS, index)


def held_out_seed(index: int) -> int:
    """The held-out seed at ``index``, 0 to 999 999.

    Raises:
        WorkloadError: ``index`` is outside the range.
    """
    return _seed_at(HELD_OUT_SEEDS, index)


def _seed_at(seeds: range, index: int) -> int:
    if not 0 <= index < len(seeds):
        raise WorkloadError(f"index: {index}; must be from 0 to {len(seeds) - 1}")
    return seeds[index]
