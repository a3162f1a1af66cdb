"""The parts of Kubernetes objects that decisions look at. Unknown fields are skipped, not read."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct, field

Quantities: TypeAlias = dict[str, str | int | float]
"""Amounts by resource name, as written."""


class ObjectMeta(Struct, frozen=True):
    """Of any object."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    labels: dict[str, str] | None = None


class ResourceRequirements(Struct, frozen=True):
    """Of a container or a pod."""

    requests: Quantities | None = None


class Container(Struct, frozen=True, rename="camel"):
    """Of a pod. An init container that restarts always is a sidecar."""

    image: str = ""
    resources: ResourceRequirements | None = None
    restart_policy: str | None = None


class PodSpec(Struct, frozen=True, rename="camel"):
    """What a pod is to be."""

    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    overhead: Quantities | None = None
    resources: ResourceRequirements | None = None


class Pod(Struct, frozen=True):
    """A pod."""

    metadata: ObjectMeta = field(default_factory=ObjectMeta)
    spec: PodSpec = field(default_factory=PodSpec)


class NodeMeta(Struct, frozen=True):
    """Of a node."""

    name: str


class NodeStatus(Struct, frozen=True):
    """What a node has to give."""

    allocatable: Quantities | None = None


class Node(Struct, frozen=True):
    """A node, without its images."""

    metadata: NodeMeta
    status: NodeStatus = field(default_factory=NodeStatus)


class ContainerImage(Struct, frozen=True):
    """An image on a node, by all its names."""

    names: list[str] | None = None


class NodeImageStatus(Struct, frozen=True):
    """Which images a node has."""

    images: list[ContainerImage] | None = None


class NodeImages(Struct, frozen=True):
    """The images of a node: most of its text, so read apart from the rest."""

    status: NodeImageStatus = field(default_factory=NodeImageStatus)
