"""What a pod asks for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from policy_server.kubernetes.objects import Container, Pod, Quantities, ResourceRequirements
from policy_server.kubernetes.quantity import QuantityError, parse_quantity


@dataclass(frozen=True, slots=True)
class PodResources:
    """CPU and memory a pod requests; 0 where it requests none."""

    cpu_millicores: float
    memory_bytes: float


def pod_resources(pod: Pod) -> PodResources:
    """What the scheduler reserves for the pod.

    Per resource: the larger of what runs for good (containers and sidecars) and what the start needs at its peak (an
    init container and the sidecars started before it), or what the pod as a whole requests instead, plus its
    overhead. Source: ``k8s.io/component-helpers/resource.PodRequests``.

    Raises:
        QuantityError: an amount is no quantity, or negative; the message names the field.
    """
    return PodResources(_request(pod, "cpu") * 1000, _request(pod, "memory"))


def amount(quantities: Quantities | None, resource: str, path: str) -> float | None:
    """One amount of several; None where it is not among them.

    Raises:
        QuantityError: it is no quantity, or negative; the message begins with ``path``.
    """
    written = None if quantities is None else quantities.get(resource)
    if written is None:
        return None
    try:
        value = parse_quantity(str(written))
    except QuantityError as error:
        raise QuantityError(f"{path}.{resource}: {error}") from None
    if not value >= 0:
        raise QuantityError(f"{path}.{resource}: {written!r} is negative; must be zero or more")
    return value


def _request(pod: Pod, resource: str) -> float:
    spec = pod.spec
    running = sum(request for _, request in _requests("containers", spec.containers, resource))
    sidecars = peak = 0.0
    for container, request in _requests("initContainers", spec.init_containers, resource):
        peak = max(peak, sidecars + request)
        if container.restart_policy == "Always":
            sidecars += request
    total = _of(spec.resources, resource, "Pod.spec.resources")
    if total is None:
        total = max(running + sidecars, peak)
    return total + (amount(spec.overhead, resource, "Pod.spec.overhead") or 0.0)


def _requests(
    kind: str, containers: list[Container] | None, resource: str
) -> Iterator[tuple[Container, float]]:
    for position, container in enumerate(containers or ()):
        path = f"Pod.spec.{kind}[{position}].resources"
        yield container, _of(container.resources, resource, path) or 0.0


def _of(resources: ResourceRequirements | None, resource: str, path: str) -> float | None:
    return None if resources is None else amount(resources.requests, resource, f"{path}.requests")
