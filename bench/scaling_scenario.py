"""The containers that are benchmarked: SockShop-like applications of ten containers, four nodes for every hundred.

All figures are fixed, so that every run sees the same containers.
"""

from __future__ import annotations

import numpy as np

from policy_server.proto.policy.v1.scaling_service_pb2 import (
    QosClass,
    ScaleRequest,
    ScalingApplications,
    ScalingContainers,
    ScalingHistory,
    ScalingNodes,
)

INTERVALS = 24
"""As many as the learned policy looks back."""
_CONTAINERS_PER_APPLICATION = 10
_CONTAINERS_PER_NODE = 25
_MEBIBYTE = 2.0**20
_GIBIBYTE = 2.0**30


def generate_scale_request(containers: int, policy: str = "", intervals: int = INTERVALS) -> ScaleRequest:
    """Measurements of so many containers under varying load; some of them want more, some less, most neither."""
    random = np.random.default_rng(containers)
    nodes = -(-containers // _CONTAINERS_PER_NODE)
    applications = -(-containers // _CONTAINERS_PER_APPLICATION)
    row = np.arange(containers)
    limit = 200.0 + 100.0 * (row % 9)
    memory_limit = (128.0 + 64.0 * (row % 7)) * _MEBIBYTE
    share = 0.2 + 0.5 * random.random(containers)
    noise = 1.0 + 0.1 * random.standard_normal((intervals, containers)).clip(-2, 2)
    usage = limit * share * noise
    return ScaleRequest(
        policy=policy,
        nodes=ScalingNodes(
            name=[f"edge-{number}" for number in range(nodes)],
            cpu_millicores=[16_000.0] * nodes,
            memory_bytes=[16.0 * _GIBIBYTE] * nodes,
        ),
        applications=ScalingApplications(
            name=[f"shop-{number}" for number in range(applications)],
            latency_objective_seconds=[0.2] * applications,
        ),
        containers=ScalingContainers(
            id=[f"shop-{number // 10}/service-{number % 10}-7d9f/server" for number in range(containers)],
            node=(row // _CONTAINERS_PER_NODE).tolist(),
            application=(row // _CONTAINERS_PER_APPLICATION).tolist(),
            qos_class=[QosClass.QOS_CLASS_BURSTABLE] * containers,
            cpu_request_millicores=(limit / 2).tolist(),
            cpu_limit_millicores=limit.tolist(),
            memory_request_bytes=(memory_limit / 2).tolist(),
            memory_limit_bytes=memory_limit.tolist(),
            sample_age_seconds=[1.0] * containers,
        ),
        history=ScalingHistory(
            intervals=intervals,
            cpu_usage_millicores=usage.ravel().tolist(),
            throttled_fraction=(0.1 * share * noise).ravel().tolist(),
            memory_usage_bytes=(memory_limit * 0.6 * noise).ravel().tolist(),
            latency_seconds=(0.02 * noise).ravel().tolist(),
            requests_per_second=(50.0 * noise).ravel().tolist(),
            cpu_limit_millicores=np.broadcast_to(limit, noise.shape).ravel().tolist(),
            memory_limit_bytes=np.broadcast_to(memory_limit, noise.shape).ravel().tolist(),
        ),
    )
