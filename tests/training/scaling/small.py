"""A small application for tests."""

from __future__ import annotations

from training.scaling.application import Application, Call, MachineNode, Operation, Service


def small_application() -> Application:
    """A front end and a store on one node."""
    return Application(
        name="small",
        latency_objective_seconds=0.1,
        client_timeout_seconds=0.5,
        mean_rate_per_second=40.0,
        nodes=(MachineNode("only", 2.0, 2048, "edge"),),
        services=(
            Service("web", "only", 60, 0.5, 20),
            Service("store", "only", 120, 0.5, 60, restart_seconds=2.0),
        ),
        operations=(
            Operation("read", 3.0, Call("web", 4.0, ((Call("store", 3.0),),))),
            Operation("ping", 1.0, Call("web", 2.0)),
        ),
    )
