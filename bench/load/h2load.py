"""Closed loops driven by h2load, the HTTP/2 load generator in C of the nghttp2 project.

h2load takes about a tenth of a Python client's CPU per request. It does not look at gRPC statuses, so responses
have to be checked by other means. Its fixed rates (``--rps``) come in bursts, from a timer of 10 ms: they are used
where latencies are so long that this does not matter, and never to measure a decision.
"""

from __future__ import annotations

import re
import resource
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from bench.load.errors import LoadError
from bench.load.http2 import grpc_frame
from bench.load.measurement import Measurement
from bench.load.plans import ClosedLoop, OpenLoop
from bench.load.target import Target

NAME = "h2load"
INSTALL_HINT = "install Debian's nghttp2-client to measure with h2load"
_SILENCE_LIMIT_SECONDS = 10
_LOG_COLUMNS = 3
_STREAMS_WITHOUT_LIMIT = 10_000


@cache
def version() -> str | None:
    """Version of the h2load on the path; None where there is none that works."""
    if shutil.which(NAME) is None:
        return None
    answer = subprocess.run([NAME, "--version"], capture_output=True, text=True, check=False)
    found = re.search(r"nghttp2/(\S+)", answer.stdout)
    return found[1] if answer.returncode == 0 and found else None


def generate_closed_loop(target: Target, plan: ClosedLoop) -> Measurement:
    """Runs h2load on the plan, with one thread.

    Raises:
        LoadError: h2load failed, or its log is not what it should be.
    """
    with tempfile.TemporaryDirectory(prefix="policy-bench-") as folder:
        body = Path(folder, "request")
        body.write_bytes(grpc_frame(target.message))
        arguments = ["-d", str(body), "-H", "content-type: application/grpc", "-H", "te: trailers"]
        return get_closed_loop(f"http://{target.address}{target.path}", plan, arguments)


def get_closed_loop(url: str, plan: ClosedLoop, arguments: Sequence[str] = ()) -> Measurement:
    """Runs h2load on the plan with plain GET requests, unless ``arguments`` say otherwise. One thread.

    Raises:
        LoadError: h2load failed, or its log is not what it should be.
    """
    connections = min(plan.connections, plan.requests)
    loop = ["-n", str(plan.requests), "-c", str(connections), "-m", str(plan.streams)]
    return _run(url, plan.requests, [*loop, *arguments])


def get_at_rate(url: str, plan: OpenLoop, connections: int, arguments: Sequence[str] = ()) -> Measurement:
    """Runs h2load at a fixed rate with plain GET requests, unless ``arguments`` say otherwise. One thread.

    Requests leave in bursts of 10 ms, and latency counts from when they have left. So this is for latencies well
    above 10 ms.

    Args:
        url: What to get.
        plan: How much and how fast.
        connections: The rate is divided among them.
        arguments: Further arguments for h2load.

    Raises:
        LoadError: h2load failed, or its log is not what it should be.
    """
    rate = ["--rps", f"{plan.requests_per_second / connections:g}", "-m", str(_STREAMS_WITHOUT_LIMIT)]
    return _run(url, plan.requests, ["-n", str(plan.requests), "-c", str(connections), *rate, *arguments])


def _run(url: str, requests: int, arguments: Sequence[str]) -> Measurement:
    with tempfile.TemporaryDirectory(prefix="policy-bench-") as folder:
        log = Path(folder, "log")
        command = [
            NAME,
            "-t",
            "1",
            "-N",
            f"{_SILENCE_LIMIT_SECONDS}s",
            "--log-file",
            str(log),
            *arguments,
            url,
        ]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        finished = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            start_new_session=True,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if finished.returncode or not log.exists():
            raise LoadError(f"h2load failed with exit code {finished.returncode}: {finished.stdout.strip()}")
        cpu_seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        with log.open(encoding="ascii") as rows:
            return parse_log(rows, requests, cpu_seconds)


def parse_log(rows: Iterable[str], requests: int, client_cpu_seconds: float) -> Measurement:
    """Reads a log of h2load: start in microseconds since the epoch, HTTP status (-1: failed), microseconds taken.

    Later versions may add columns, which are ignored.

    Args:
        rows: Lines of the log.
        requests: How many requests h2load was told to send; those without a row count as failed.
        client_cpu_seconds: CPU time of the run.

    Raises:
        LoadError: a row cannot be read, or there is none.
    """
    values: list[tuple[int, int, int]] = []
    for number, row in enumerate(rows, 1):
        try:
            start, status, duration = (int(column) for column in row.split("\t")[:_LOG_COLUMNS])
        except ValueError:
            raise LoadError(
                f"h2load's log, row {number}: {row.strip()!r} is not start, status, duration"
            ) from None
        values.append((start, status, duration))
    if not values:
        raise LoadError("h2load's log is empty: no request ended")
    table = np.array(sorted(values), np.int64)
    failures = Counter(f"HTTP status {status}" for _, status, _ in values if status not in (200, -1))
    failures["stream failed"] = sum(status == -1 for _, status, _ in values)
    failures["no response"] = max(0, requests - len(values))
    return Measurement(
        generator=NAME,
        sent_microseconds=table[:, 0],
        latency_microseconds=table[:, 2],
        failures={reason: count for reason, count in failures.items() if count},
        client_cpu_seconds=client_cpu_seconds,
    )
