"""The compiled kernel computes what the slow, obvious simulation computes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.training.scaling.reference_simulation import ReferenceSimulation
from training.scaling.application import MEBIBYTE, Application, Call, MachineNode, Network, Operation, Service
from training.scaling.simulation import ScalingSimulation, latency_quantile
from training.scaling.sock_shop import sock_shop

SECONDS = 20


def shop_without_chance() -> Application:
    return replace(sock_shop(), work_deviation=0.0)


def fragile_application() -> Application:
    """Parallel calls, background calls below background calls, memory that runs out within seconds."""
    store = Call("store", 3.0)
    audit = Call("audit", 4.0, ((Call("store", 2.0),), (Call("mail", 5.0),)), background=True)
    return Application(
        name="fragile",
        latency_objective_seconds=0.06,
        client_timeout_seconds=0.4,
        mean_rate_per_second=60.0,
        nodes=(MachineNode("near", 0.9, 512, "edge"), MachineNode("far", 0.5, 512, "cloud")),
        services=(
            Service("web", "near", 50, 4.0, 20, cache_requests=100, restart_seconds=1.5),
            Service("store", "near", 60, 2.0, 10, restart_seconds=1.0),
            Service("audit", "far", 30, 1.0, 5, restart_seconds=2.0),
            Service("mail", "far", 30, 8.0, 5, restart_seconds=0.5),
        ),
        operations=(
            Operation("read", 3.0, Call("web", 4.0, ((store, Call("mail", 1.0)), (store,)))),
            Operation("write", 1.0, Call("web", 6.0, ((audit, store), (Call("audit", 2.0, ((store,),)),)))),
        ),
        network=Network(0.001, 0.0002, 0.0005, 0.004),
        work_deviation=0.0,
    )


CASES = {
    "ample": (shop_without_chance(), 120.0, 2.0, 600.0),
    "throttled": (shop_without_chance(), 120.0, 0.35, 600.0),
    "overloaded": (shop_without_chance(), 150.0, 0.12, 1000.0),
    "killed": (shop_without_chance(), 120.0, 0.14, 210.0),
    "fragile": (fragile_application(), 60.0, 0.5, 90.0),
    "fragile-overloaded": (fragile_application(), 90.0, 0.2, 70.0),
    "fragile-dying": (fragile_application(), 60.0, 0.35, 64.0),
}


@pytest.mark.parametrize("case", CASES)
def test_every_figure_agrees(case: str) -> None:
    application, rate, cores, memory = CASES[case]
    names = application.service_names
    simulation = ScalingSimulation(application, [7])
    random = int(simulation.random_state[0])
    shape = (1, len(names))
    limits = np.full(shape, cores), np.full(shape, memory * MEBIBYTE)
    simulation.resize(*limits)
    simulation.put_limits_in_force()
    reference = ReferenceSimulation(
        application, dict.fromkeys(names, cores), dict.fromkeys(names, memory * MEBIBYTE), random
    )
    interval = int(simulation.interval_seconds)
    outcomes = [simulation.advance(np.full((1, interval), rate)) for _ in range(SECONDS // interval)]
    reference.run(rate, SECONDS * 10)
    containers = [reference.containers[name] for name in names]

    def total(name: str) -> np.ndarray:
        return sum(getattr(outcome, name)[0] for outcome in outcomes)

    assert total("requests") == reference.requests
    assert total("failures") == reference.failures
    assert total("violations") == reference.violations
    assert total("latency_seconds") == pytest.approx(sum(reference.latencies))
    np.testing.assert_array_equal(total("kills"), [c.kills for c in containers])
    for name, expected in (
        ("wait_seconds", [c.wait_seconds for c in containers]),
        ("blame", [c.blame for c in containers]),
        ("cpu_usage_cores", [c.cpu_seconds / interval for c in containers]),
        ("throttled_fraction", [c.throttled_periods / interval / 10 for c in containers]),
        ("container_requests_per_second", [c.visits / interval for c in containers]),
    ):
        np.testing.assert_allclose(total(name), expected, rtol=1e-9, atol=1e-9, err_msg=name)
    np.testing.assert_allclose(
        np.max([outcome.memory_usage_bytes[0] for outcome in outcomes], axis=0),
        [c.peak_memory for c in containers],
    )
    visit_seconds = sum(
        np.nan_to_num(outcome.container_latency_seconds[0])
        * outcome.container_requests_per_second[0]
        * interval
        for outcome in outcomes
    )
    np.testing.assert_allclose(visit_seconds, [c.visit_seconds for c in containers])
    counts = sum(outcome.latency_counts for outcome in outcomes)
    for share in (0.5, 0.9, 0.99):
        exact = np.quantile(reference.latencies, share)
        assert latency_quantile(counts, share)[0] == pytest.approx(exact, rel=0.03)


def test_the_cases_cover_what_can_happen() -> None:
    seen = {"failures": 0, "kills": 0, "throttled_fraction": 0.0}
    for application, rate, cores, memory in CASES.values():
        simulation = ScalingSimulation(application, [7])
        shape = (1, len(application.services))
        simulation.resize(np.full(shape, cores), np.full(shape, memory * MEBIBYTE))
        outcome = simulation.advance(np.full((1, 5), rate))
        for name in seen:
            seen[name] += getattr(outcome, name).sum()
    assert all(value > 0 for value in seen.values())
