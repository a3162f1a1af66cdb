"""The cluster that the extender is asked about: any number of nodes, as state and as Kubernetes objects.

Objects are as large as those of a managed cluster: labels, annotations, conditions, managed fields and 16 images
make about 8 KB a node. All figures are fixed, so that every run sees the same cluster.
"""

from __future__ import annotations

import json
from itertools import permutations
from typing import Any

from policy_server.proto.policy.v1.state_pb2 import (
    AccessPoint,
    AccessPointLoad,
    Link,
    Load,
    Node,
    NodeLoad,
    Replica,
    ReplicaLoad,
    ReplicaState,
    Service,
    ServiceRate,
    Topology,
)
from policy_server.proto.policy.v1.state_service_pb2 import FullState

SERVICE = "service-07"
_ACCESS_POINTS = 20
_SERVICES = 30
_REPLICAS_PER_NODE = 2
_MEBIBYTE = 2**20
_GIBIBYTE = 2**30
_POD_UID = "00000000-0000-0000-0000-000000000000"
_IMAGES = 16


def node_names(nodes: int) -> list[str]:
    """Names as a managed cluster gives them."""
    return [f"gke-edge-pool-{row % _ACCESS_POINTS:02}-{row:06x}" for row in range(nodes)]


def generate_cluster(nodes: int) -> FullState:
    """The state of a cluster: 20 access points joined in pairs, 30 services, two replicas on each node."""
    names = node_names(nodes)
    access_points = [f"edge-{number}" for number in range(_ACCESS_POINTS)]
    services = [f"service-{number:02}" for number in range(_SERVICES)]
    replicas = [
        Replica(
            endpoint=f"10.{row >> 16}.{row >> 8 & 255}.{row & 255}:8080",
            service=services[row % _SERVICES],
            node=names[row // _REPLICAS_PER_NODE],
            concurrency=4,
        )
        for row in range(_REPLICAS_PER_NODE * nodes)
    ]
    topology = Topology(
        access_points=[AccessPoint(name=name) for name in access_points],
        nodes=[
            Node(
                name=name,
                access_point=access_points[row % _ACCESS_POINTS],
                cpu_millicores=3920.0,
                memory_bytes=12.0 * _GIBIBYTE,
                speed=1.0 - 0.05 * (row % 3),
            )
            for row, name in enumerate(names)
        ],
        services=[
            Service(
                name=name,
                cpu_millicores=250.0,
                execution_seconds=0.1,
                memory_bytes=256.0 * _MEBIBYTE,
                image_bytes=200.0 * _MEBIBYTE,
                cold_start_seconds=2.0,
                deadline_seconds=1.0,
            )
            for name in services
        ],
        replicas=replicas,
        links=[
            Link(source=source, target=target, delay_seconds=0.01, bandwidth_bytes_per_second=5e7)
            for source, target in permutations(access_points, 2)
        ],
    )
    load = Load(
        access_points=[
            AccessPointLoad(
                name=name,
                arrival_rates=[ServiceRate(service=SERVICE, requests_per_second=1.0 + row % 7)],
            )
            for row, name in enumerate(access_points)
        ],
        nodes=[
            NodeLoad(
                name=name,
                cpu_used_millicores=3920.0 * (row % 10) / 10,
                # One node in ten is full.
                memory_used_bytes=12.0 * _GIBIBYTE * (1.0 if row % 10 == 9 else 0.05 * (row % 17)),
            )
            for row, name in enumerate(names)
        ],
        replicas=[
            ReplicaLoad(endpoint=replica.endpoint, state=ReplicaState.REPLICA_STATE_READY)
            for replica in replicas
        ],
    )
    return FullState(topology=topology, load=load)


class ExtenderCalls:
    """Bodies of calls about one pod after another and all nodes of the cluster.

    Args:
        nodes: how many.
        names_only: whether nodes come by name.
    """

    def __init__(self, nodes: int, *, names_only: bool) -> None:
        names = node_names(nodes)
        arguments = {
            "Pod": _pod(),
            "Nodes": None if names_only else {"metadata": {}, "items": list(map(_node, names))},
            "NodeNames": names if names_only else None,
        }
        text = json.dumps(arguments, separators=(",", ":")).encode()
        self._before, _, self._after = text.partition(_POD_UID.encode())

    def body(self, pod: int) -> bytes:
        """The body about the pod of that number."""
        return b"".join((self._before, f"{pod:08}".encode(), _POD_UID[8:].encode(), self._after))


def _pod() -> dict[str, Any]:
    return {
        "metadata": {
            "name": f"{SERVICE}-7d9c5b8f6d-x2x4z",
            "generateName": f"{SERVICE}-7d9c5b8f6d-",
            "namespace": "edge",
            "uid": _POD_UID,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"app": SERVICE, "pod-template-hash": "7d9c5b8f6d"},
        },
        "spec": {
            "containers": [
                {
                    "name": "main",
                    "image": _image(7),
                    "resources": {"requests": {"cpu": "250m", "memory": "256Mi"}},
                    "terminationMessagePath": "/dev/termination-log",
                    "imagePullPolicy": "IfNotPresent",
                }
            ],
            "restartPolicy": "Always",
            "schedulerName": "default-scheduler",
        },
        "status": {"phase": "Pending", "qosClass": "Burstable"},
    }


def _node(name: str) -> dict[str, Any]:
    conditions = {
        "MemoryPressure": "KubeletHasSufficientMemory",
        "DiskPressure": "KubeletHasNoDiskPressure",
        "PIDPressure": "KubeletHasSufficientPID",
        "NetworkUnavailable": "RouteCreated",
        "Ready": "KubeletReady",
    }
    resources = {
        "cpu": "4",
        "ephemeral-storage": "98831908Ki",
        "hugepages-1Gi": "0",
        "hugepages-2Mi": "0",
        "memory": "16393244Ki",
        "pods": "110",
    }
    fields: dict[str, object] = {
        f"f:{field}": {".": {}, "f:value": {}} for field in (*conditions, *resources)
    }
    # Every second node has the pod's image.
    first = 0 if int(name[-1], 16) % 2 else 8
    return {
        "metadata": {
            "name": name,
            "uid": f"3f1c2b7e-{name[-6:]}-4c1d-9f43-5d1c0b8e7a66",
            "resourceVersion": "184467",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {
                "kubernetes.io/hostname": name,
                "topology.kubernetes.io/region": "europe-west1",
                "topology.kubernetes.io/zone": "europe-west1-b",
                **{f"cloud.example.com/label-{number}": f"value-of-label-{number}" for number in range(16)},
            },
            "annotations": {
                f"csi.volume.example.com/annotation-{number}": '{"driver":"pd.csi.example.com"}' * 3
                for number in range(8)
            },
            "managedFields": [
                {
                    "manager": manager,
                    "operation": "Update",
                    "apiVersion": "v1",
                    "time": "2026-01-01T00:00:00Z",
                    "fieldsType": "FieldsV1",
                    "fieldsV1": {"f:metadata": {"f:labels": fields}, "f:status": fields},
                }
                for manager in ("kubelet", "cloud-controller-manager")
            ],
        },
        "spec": {"podCIDR": "10.4.0.0/24", "providerID": f"gce://project/europe-west1-b/{name}"},
        "status": {
            "capacity": resources,
            "allocatable": {**resources, "cpu": "3920m", "memory": "12Gi"},
            "conditions": [
                {
                    "type": kind,
                    "status": "True" if kind == "Ready" else "False",
                    "lastHeartbeatTime": "2026-01-01T00:00:00Z",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                    "reason": reason,
                    "message": f"kubelet reports {reason}",
                }
                for kind, reason in conditions.items()
            ],
            "addresses": [
                {"type": "InternalIP", "address": "10.128.0.7"},
                {"type": "Hostname", "address": name},
            ],
            "images": [
                {
                    "names": [f"{_image(number).rpartition(':')[0]}@sha256:{number:064x}", _image(number)],
                    "sizeBytes": 100_000_000 + number,
                }
                for number in range(first, first + _IMAGES)
            ],
        },
    }


def _image(number: int) -> str:
    return f"registry.example.com/edge/service-{number:02}:1.4.2"
