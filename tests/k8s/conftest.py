from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.control_plane import ControlPlane, control_plane, missing_programs


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """One control plane for all tests, which leave neither nodes nor pods behind."""
    missing = missing_programs()
    if missing is not None:
        pytest.skip(missing)
    with control_plane(tmp_path_factory.mktemp("control-plane")) as started:
        yield started


@pytest.fixture
def cluster(plane: ControlPlane) -> Iterator[ControlPlane]:
    """The control plane, emptied after the test."""
    yield plane
    plane.clear()
