from __future__ import annotations

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def _one_torch_thread() -> None:
    """Networks here are small: threads would wait for each other more than compute."""
    torch.set_num_threads(1)
