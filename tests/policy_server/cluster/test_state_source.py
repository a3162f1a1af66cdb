"""State sources, found by name."""

from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints
from typing import Any

import pytest

from policy_server.cluster import state_source
from policy_server.cluster.state_source import StateSourceError


class Source:
    def __init__(self, *, speed: str = "1") -> None:
        if not speed.isdigit():
            raise ValueError(f"speed: {speed!r}; give a whole number")
        self.speed = speed

    def run(self, publish: Any, stopped: Any) -> None:
        """Publishes nothing."""


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = EntryPoints(
        [
            EntryPoint("test", "irrelevant:Source", state_source.ENTRY_POINT_GROUP),
            EntryPoint("broken", "no_such_module_anywhere:Source", state_source.ENTRY_POINT_GROUP),
        ]
    )
    load = EntryPoint.load
    monkeypatch.setattr(EntryPoint, "load", lambda entry: Source if entry.name == "test" else load(entry))
    monkeypatch.setattr(state_source, "entry_points", lambda group: entries)


def test_source_gets_its_options() -> None:
    source = state_source.state_source("test", {"speed": "7"})
    assert isinstance(source, Source)
    assert source.speed == "7"


@pytest.mark.parametrize(
    ("name", "options", "complaint"),
    [
        ("unheard-of", {}, "'unheard-of': unknown; choose one of: broken, test"),
        ("broken", {}, "'broken': No module named 'no_such_module_anywhere'; install what it needs"),
        ("test", {"speed": "fast"}, "'test': speed: 'fast'; give a whole number"),
        ("test", {"colour": "red"}, "'test': .*unexpected keyword argument 'colour'"),
    ],
)
def test_source_that_cannot_be_had(name: str, options: dict[str, str], complaint: str) -> None:
    with pytest.raises(StateSourceError, match=complaint):
        state_source.state_source(name, options)
