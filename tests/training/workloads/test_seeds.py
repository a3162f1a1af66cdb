from __future__ import annotations

import pytest

from training.workloads.columns import WorkloadError
from training.workloads.seeds import HELD_OUT_SEEDS, TRAINING_SEEDS, held_out_seed, training_seed


def test_training_and_held_out_seeds_never_meet() -> None:
    assert TRAINING_SEEDS.stop <= HELD_OUT_SEEDS.start


def test_seeds_come_from_their_range() -> None:
    assert training_seed(7) == 7
    assert held_out_seed(0) == 1_000_000_000
    assert held_out_seed(19) in HELD_OUT_SEEDS
    assert held_out_seed(19) not in TRAINING_SEEDS


@pytest.mark.parametrize("index", [-1, 1_000_000])
def test_an_index_outside_the_range_is_refused(index: int) -> None:
    with pytest.raises(WorkloadError, match=f"index: {index}; must be from 0 to 999999"):
        held_out_seed(index)
    with pytest.raises(WorkloadError, match=f"index: {index}"):
        training_seed(index)
