from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from bench.commands import echo_command
from bench.server_process import ServerError, ServerProcess, free_port, free_ports


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def is_gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def wait_until_gone(pid: int, seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not is_gone(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return is_gone(pid)


def echo_process() -> ServerProcess:
    port = free_port()
    return ServerProcess("echo", echo_command(port, "aio"), port)


def test_a_server_serves_inside_and_is_gone_outside() -> None:
    with echo_process() as process:
        pid = process.pid
        process.check_alive()
        assert process.ready_seconds > 0
        assert process.cpu_seconds() > 0
        assert not is_gone(pid)
    assert is_gone(pid)


def test_a_server_is_stopped_when_the_caller_fails() -> None:
    pids = []

    def fail() -> None:
        with echo_process() as process:
            pids.append(process.pid)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert is_gone(pids[0])


def test_a_server_that_ends_at_once_is_reported_with_its_output() -> None:
    command = python(
        "import sys; print('no model', flush=True); print('bad flag', file=sys.stderr); sys.exit(3)"
    )
    with pytest.raises(ServerError, match=r"(?s)exit code 3.*no model.*bad flag"):
        ServerProcess("server", command, free_port()).__enter__()


def test_a_server_that_never_serves_is_stopped_and_reported(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    code = (
        "import os, pathlib, time\n"
        f"pathlib.Path({str(pid_file)!r}).write_text(str(os.getpid()))\n"
        "print('up', flush=True)\n"
        "time.sleep(60)"
    )
    with pytest.raises(ServerError, match=r"(?s)does not serve .*up"):
        ServerProcess("server", python(code), free_port(), start_limit_seconds=1.5).__enter__()
    assert wait_until_gone(int(pid_file.read_text()))


def test_a_missing_program_is_reported() -> None:
    with pytest.raises(ServerError, match="cannot run no-such-program"):
        ServerProcess("server", ["no-such-program"], free_port()).__enter__()


def test_a_server_that_ignores_the_signal_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.server_process._STOP_LIMIT_SECONDS", 0.3)
    port = free_port()
    stubborn = (
        "import signal, sys, runpy\n"
        "real = signal.signal\n"
        "signal.signal = lambda number, handler: real(number, signal.SIG_IGN)\n"
        f"sys.argv = ['policy-bench', 'echo', '--port', '{port}', '--flavour', 'threads-1']\n"
        "runpy.run_module('bench.cli', run_name='__main__')\n"
    )
    with ServerProcess("server", python(stubborn), port) as process:
        pid = process.pid
    assert is_gone(pid)


def test_a_killed_server_is_noticed_and_can_still_be_left() -> None:
    with echo_process() as process:
        process.kill()
        with pytest.raises(ServerError, match="exit code -9"):
            process.check_alive()


def test_free_ports_differ_and_can_be_listened_on() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    for port in ports:
        with socket.create_server(("127.0.0.1", port)):
            pass


def test_a_death_is_noticed() -> None:
    with echo_process() as process:
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(ServerError, match="exit code -9"):
            process.check_alive(grace_seconds=10)


def test_all_threads_are_pinned_for_a_while() -> None:
    with echo_process() as process:
        threads = [int(path.name) for path in Path(f"/proc/{process.pid}/task").iterdir()]
        assert len(threads) > 1
        before = os.sched_getaffinity(process.pid)
        with process.on_one_core():
            assert [len(os.sched_getaffinity(thread)) for thread in threads] == [1] * len(threads)
        assert [os.sched_getaffinity(thread) for thread in threads] == [before] * len(threads)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_command_leaves_no_server_behind(number: signal.Signals) -> None:
    command = [sys.executable, "-m", "bench.cli", "flavours", "--flavour", "aio", "--repetitions", "1000"]
    bench = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        servers: list[psutil.Process] = []
        deadline = time.monotonic() + 20
        while not servers and time.monotonic() < deadline:
            servers = [c for c in psutil.Process(bench.pid).children() if "echo" in c.cmdline()]
            time.sleep(0.05)
        assert servers
        bench.send_signal(number)
        assert bench.wait(20) != 0
        assert all(wait_until_gone(server.pid) for server in servers)
    finally:
        bench.kill()
        bench.wait()
