"""The project's own load generator: one thread on :mod:`bench.load.http2`.

:func:`generate` runs it in a process of its own, so that neither its CPU time nor its interpreter lock mixes with
anything else.
"""

from __future__ import annotations

import gc
import pickle
import select
import subprocess
import sys
import time
from collections import Counter

import numpy as np

from bench.load.errors import LoadError
from bench.load.http2 import UnaryConnection
from bench.load.measurement import Int64Array, Measurement, OpenLoopMeasurement
from bench.load.plans import ClosedLoop, OpenLoop
from bench.load.schedule import ConstantRateSchedule
from bench.load.target import Target

NAME = "policy-bench"
_LEAD_NANOSECONDS = 5_000_000
_SILENCE_LIMIT_SECONDS = 10.0


def generate_closed_loop(target: Target, plan: ClosedLoop) -> Measurement:
    """Runs the plan in a process of its own.

    Raises:
        LoadError: the server could not be reached or fell silent for ten seconds, or the generator died.
    """
    measurement = _in_own_process(target, plan)
    assert isinstance(measurement, Measurement)
    return measurement


def generate_open_loop(target: Target, plan: OpenLoop) -> OpenLoopMeasurement:
    """Runs the plan in a process of its own.

    Raises:
        LoadError: the server could not be reached or fell silent for ten seconds, or the generator died.
    """
    measurement = _in_own_process(target, plan)
    assert isinstance(measurement, OpenLoopMeasurement)
    return measurement


def _in_own_process(target: Target, plan: ClosedLoop | OpenLoop) -> object:
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.load"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        output, complaint = process.communicate(pickle.dumps((target, plan)))
    except BaseException:
        process.kill()
        process.communicate()
        raise
    if process.returncode:
        raise LoadError(
            complaint.decode(errors="replace").strip() or "the load generator died without a word"
        )
    return pickle.loads(output)


def run(target: Target, plan: ClosedLoop | OpenLoop) -> Measurement:
    """Runs the plan in this process.

    Raises:
        LoadError: the server could not be reached or fell silent for ten seconds.
    """
    connections: list[UnaryConnection] = []
    count = min(plan.connections, plan.requests) if isinstance(plan, ClosedLoop) else 1
    try:
        connections.extend(
            UnaryConnection(target.host, target.port, target.path, target.message, _SILENCE_LIMIT_SECONDS)
            for _ in range(count)
        )
        # Nothing here makes cycles worth collecting, and a collection would delay what is due.
        gc.collect()
        gc.disable()
        if isinstance(plan, ClosedLoop):
            return _closed_loop(connections, plan)
        return _open_loop(connections[0], plan)
    except OSError as error:
        raise LoadError(f"{target.address}: {error}") from None
    finally:
        gc.enable()
        for connection in connections:
            connection.close()


def _closed_loop(connections: list[UnaryConnection], plan: ClosedLoop) -> Measurement:
    cpu_seconds = -time.process_time()
    unsent = unanswered = plan.requests
    for connection in connections:
        for _ in range(min(plan.streams, unsent)):
            connection.send()
            unsent -= 1
    while unanswered:
        readable, _, _ = select.select(connections, [], [], _SILENCE_LIMIT_SECONDS)
        if not readable:
            raise LoadError(_silence(unanswered))
        for connection in readable:
            ended = connection.receive()
            unanswered -= ended
            for _ in range(min(ended, unsent)):
                connection.send()
                unsent -= 1
    cpu_seconds += time.process_time()
    sent, ended_at, failures, responses = _collect(connections)
    return Measurement(NAME, sent, ended_at - sent, failures, cpu_seconds, responses)


def _open_loop(connection: UnaryConnection, plan: OpenLoop) -> OpenLoopMeasurement:
    cpu_seconds = -time.process_time()
    schedule = ConstantRateSchedule(time.monotonic_ns() + _LEAD_NANOSECONDS, plan.requests_per_second)
    sent_count = answered = 0
    while answered < plan.requests:
        while (
            sent_count < min(plan.requests, schedule.due_count(time.monotonic_ns())) and connection.can_send()
        ):
            connection.send()
            sent_count += 1
        wait_seconds = _SILENCE_LIMIT_SECONDS
        awaits_due_time = sent_count < plan.requests and connection.can_send()
        if awaits_due_time:
            wait_seconds = max(0, schedule.due_nanoseconds(sent_count) - time.monotonic_ns()) / 1e9
        if select.select([connection], [], [], wait_seconds)[0]:
            answered += connection.receive()
        elif not awaits_due_time:
            raise LoadError(_silence(plan.requests - answered))
    cpu_seconds += time.process_time()
    sent, ended, failures, responses = _collect([connection])
    scheduled = schedule.all_due_nanoseconds(plan.requests) // 1000
    return OpenLoopMeasurement(
        NAME,
        sent,
        ended - scheduled,
        failures,
        cpu_seconds,
        responses,
        target_requests_per_second=plan.requests_per_second,
        scheduled_microseconds=scheduled,
    )


def _silence(unanswered: int) -> str:
    return f"no response for {_SILENCE_LIMIT_SECONDS:g} s, {unanswered} requests unanswered"


def _collect(
    connections: list[UnaryConnection],
) -> tuple[Int64Array, Int64Array, dict[str, int], tuple[bytes, ...]]:
    """Of all requests: when sent and when ended in microseconds, failures by reason, response messages."""
    sent = np.concatenate([np.array(c.sent_nanoseconds, np.int64) for c in connections]) // 1000
    ended = np.concatenate([np.array(c.ended_nanoseconds, np.int64) for c in connections]) // 1000
    failures = sum((connection.failures() for connection in connections), Counter[str]())
    responses = tuple(response for connection in connections for response in connection.responses())
    return sent, ended, dict(failures), responses
