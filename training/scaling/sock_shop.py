"""The default application: the shape of SockShop (microservices-demo), on two edge nodes and one in the cloud.

Services, calls and languages are those of the demo; work, memory and placement are our choice, in the range that such
services show: a Node.js front end, catalogue, user and payment in Go, carts, orders, shipping and queue master on the
JVM (large base, slow start), MySQL and MongoDB stores.
"""

from __future__ import annotations

from training.scaling.application import Application, Call, MachineNode, Operation, Service


def sock_shop() -> Application:
    """The application; 120 requests per second are normal load."""
    return Application(
        name="sock-shop",
        latency_objective_seconds=0.2,
        client_timeout_seconds=2.0,
        mean_rate_per_second=120.0,
        nodes=(
            MachineNode("edge-1", cpu_cores=6.0, memory_mebibytes=4096.0, site="edge"),
            MachineNode("edge-2", cpu_cores=6.0, memory_mebibytes=4096.0, site="edge"),
            MachineNode("cloud-1", cpu_cores=8.0, memory_mebibytes=16384.0, site="cloud"),
        ),
        services=(
            Service("front-end", "edge-1", 90.0, 0.6, 60.0, restart_seconds=4.0),
            Service("session-db", "edge-1", 30.0, 0.05, 20.0, restart_seconds=2.0),
            Service("catalogue", "edge-1", 24.0, 0.3, 12.0, restart_seconds=2.0),
            Service("catalogue-db", "edge-1", 200.0, 0.8, 120.0, restart_seconds=8.0),
            Service("carts", "edge-2", 280.0, 1.2, 120.0, restart_seconds=14.0),
            Service("carts-db", "edge-2", 110.0, 0.6, 160.0, restart_seconds=6.0),
            Service("user", "edge-2", 22.0, 0.3, 10.0, restart_seconds=2.0),
            Service("user-db", "edge-2", 100.0, 0.6, 80.0, restart_seconds=6.0),
            Service("orders", "cloud-1", 300.0, 1.6, 120.0, restart_seconds=16.0),
            Service("orders-db", "cloud-1", 110.0, 0.6, 160.0, restart_seconds=6.0),
            Service("payment", "cloud-1", 16.0, 0.2, 4.0, restart_seconds=2.0),
            Service("shipping", "cloud-1", 260.0, 1.0, 80.0, restart_seconds=14.0),
            Service("rabbitmq", "cloud-1", 100.0, 0.2, 30.0, restart_seconds=8.0),
            Service("queue-master", "cloud-1", 240.0, 1.0, 60.0, restart_seconds=14.0),
        ),
        operations=(
            Operation("browse", 0.45, _front_end(3.0, (_catalogue(2.5, 3.5),))),
            Operation("item", 0.22, _front_end(2.5, (_catalogue(1.5, 2.0), _carts(3.0, 2.0)))),
            Operation("add-to-cart", 0.15, _front_end(2.2, (_catalogue(1.0, 1.5),), (_carts(6.0, 4.0),))),
            Operation("log-in", 0.10, _front_end(2.2, (_user(2.5, 3.0),), (_carts(4.0, 3.0),))),
            Operation(
                "check-out",
                0.08,
                _front_end(
                    3.2,
                    (
                        Call(
                            "orders",
                            12.0,
                            (
                                (_user(2.0, 2.5), _carts(4.0, 2.5)),
                                (Call("payment", 1.0),),
                                (Call("shipping", 6.0, ((Call("rabbitmq", 1.5, ((_queue_master(),),)),),)),),
                                (Call("orders-db", 4.0),),
                            ),
                        ),
                    ),
                ),
            ),
        ),
    )


def _front_end(cpu_milliseconds: float, *stages: tuple[Call, ...]) -> Call:
    return Call("front-end", cpu_milliseconds, ((Call("session-db", 0.3),), *stages))


def _catalogue(cpu_milliseconds: float, store_milliseconds: float) -> Call:
    return Call("catalogue", cpu_milliseconds, ((Call("catalogue-db", store_milliseconds),),))


def _carts(cpu_milliseconds: float, store_milliseconds: float) -> Call:
    return Call("carts", cpu_milliseconds, ((Call("carts-db", store_milliseconds),),))


def _user(cpu_milliseconds: float, store_milliseconds: float) -> Call:
    return Call("user", cpu_milliseconds, ((Call("user-db", store_milliseconds),),))


def _queue_master() -> Call:
    return Call("queue-master", 9.0, background=True)
