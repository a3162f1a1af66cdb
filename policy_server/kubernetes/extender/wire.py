"""What kube-scheduler sends and understands: ``k8s.io/kube-scheduler/extender/v1`` as JSON.

The Go types carry no JSON tags, so keys are Go field names. Node objects are passed on as the bytes they came as, and
read only as far as a decision needs: at 5 000 nodes, building objects of everything would take half a second.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeVar

import msgspec
import numpy as np
from msgspec import Raw, Struct, field

from policy_server.cluster.snapshot import BoolArray
from policy_server.kubernetes.objects import Node, NodeImages, Pod

ValueT = TypeVar("ValueT")

LARGEST_SCORE = 10
"""``MaxExtenderPriority``."""


class WireError(ValueError):
    """A call that cannot be understood. The message names the field and what was expected."""


class NodeList(Struct, frozen=True, omit_defaults=True):
    """``core/v1.NodeList``.

    Attributes:
        items: JSON text of each node.
        metadata: JSON text.
    """

    items: list[Raw] | None
    metadata: Raw = field(default_factory=lambda: Raw(b"{}"))


class ExtenderArguments(Struct, frozen=True, rename="pascal"):
    """``ExtenderArgs``: a pod, and candidate nodes as objects or by name."""

    pod: Pod
    nodes: NodeList | None = None
    node_names: list[str] | None = None


class FilterResult(Struct, frozen=True, rename="pascal"):
    """``ExtenderFilterResult``: the nodes that may take the pod, in the form they came in, and why others may not.

    Attributes:
        nodes: None where nodes came by name.
        node_names: None where nodes came as objects.
        failed_nodes: reason by node name.
        failed_and_unresolvable_nodes: the part of them where evicting other pods would not help.
        error: always empty: an error would leave the pod unscheduled.
    """

    nodes: NodeList | None
    node_names: list[str] | None
    failed_nodes: dict[str, str]
    failed_and_unresolvable_nodes: dict[str, str]
    error: str = ""


class HostPriority(Struct, frozen=True, rename="pascal"):
    """``HostPriority``: score of one node, from 0 to :data:`LARGEST_SCORE`."""

    host: str
    score: int


class CandidateNodes:
    """The candidate nodes of a call.

    Args:
        arguments: of the call.

    Attributes:
        names: M unique names.
        objects: None where nodes came by name.

    Raises:
        WireError: there are no nodes, or they come in both forms, or twice, or one has no name.
    """

    def __init__(self, arguments: ExtenderArguments) -> None:
        self._list, names = arguments.nodes, arguments.node_names
        self.objects: list[Node] | None = None
        if (self._list is None) == (names is None):
            which = "both absent" if names is None else "both given"
            raise WireError(f"Nodes, NodeNames: {which}; send one of them")
        if self._list is not None:
            self._texts = self._list.items or []
            self.objects = [
                _decode(_NODE, text, f"Nodes.items[{position}]") for position, text in enumerate(self._texts)
            ]
            names = [node.metadata.name for node in self.objects]
        assert names is not None
        self.names: list[str] = names
        _check_names(names, "NodeNames[{}]" if self._list is None else "Nodes.items[{}].metadata.name")

    def __len__(self) -> int:
        return len(self.names)

    def have_images(self, images: Collection[str]) -> BoolArray:
        """bool [M]: whether the node lists all of these image names; False where nodes came by name.

        Raises:
            WireError: the images of a node cannot be read.
        """
        if self.objects is None or not images:
            return np.zeros(len(self), np.bool_)
        return np.array([self._has_images(position, images) for position in range(len(self))], np.bool_)

    def _has_images(self, position: int, images: Collection[str]) -> bool:
        text = self._texts[position]
        # Most nodes lack one: a look at the bytes spares reading some fifty images each.
        if not all(image.encode() in bytes(text) for image in images):
            return False
        listed = _decode(_IMAGES, text, f"Nodes.items[{position}]").status.images or ()
        return {name for image in listed for name in image.names or ()}.issuperset(images)

    def filtered(self, kept: Sequence[int] | None, failed: dict[str, str], final: dict[str, str]) -> bytes:
        """The answer to ``filter``.

        Args:
            kept: positions of the nodes that may take the pod, ascending; None: all of them.
            failed: reason by name, of the others.
            final: the part of them where evicting other pods would not help.
        """
        nodes, names = self._list, None if self._list is not None else self.names
        if kept is not None and nodes is not None:
            nodes = NodeList([self._texts[position] for position in kept], nodes.metadata)
        elif kept is not None:
            names = [self.names[position] for position in kept]
        return msgspec.json.encode(FilterResult(nodes, names, failed, final))

    def prioritized(self, scores: Sequence[int]) -> bytes:
        """The answer to ``prioritize``: a score for each node."""
        return msgspec.json.encode(list(map(HostPriority, self.names, scores)))


def decode_arguments(body: bytes) -> ExtenderArguments:
    """The arguments of a call.

    Raises:
        WireError: the body is not JSON, or a field is not what it should be.
    """
    return _decode(_ARGUMENTS, body, "")


_ARGUMENTS = msgspec.json.Decoder(ExtenderArguments)
_NODE = msgspec.json.Decoder(Node)
_IMAGES = msgspec.json.Decoder(NodeImages)


def _decode(decoder: msgspec.json.Decoder[ValueT], text: bytes | Raw, path: str) -> ValueT:
    try:
        return decoder.decode(text)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$")
        field_path = f"{path}{where.rstrip('`')}".lstrip(".")
        raise WireError(f"{field_path or 'body'}: {what[0].lower()}{what[1:]}") from None
    except msgspec.DecodeError as error:
        raise WireError(f"{path or 'body'}: {error}") from None
    except RecursionError:
        raise WireError(f"{path or 'body'}: JSON is nested too deeply") from None


def _check_names(names: Sequence[str], label: str) -> None:
    if len(set(names)) == len(names) and all(names):
        return
    seen = set()
    for position, name in enumerate(names):
        if not name:
            raise WireError(f"{label.format(position)}: empty; name the node")
        if name in seen:
            raise WireError(f"{label.format(position)}: {name!r} appears twice; list every node once")
        seen.add(name)
