"""The dispatch policy behind a model bundle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from policy_server.cluster.snapshot import Float32Array, Int64Array
from policy_server.features.candidates import Candidates
from policy_server.features.load_table import LoadTable, TopologyTable
from policy_server.runtime.bundle import Bundle
from policy_server.runtime.graph_contract import ENCODER, HEAD
from policy_server.runtime.session import BoundRun

MAXIMUM_BOUND_CANDIDATES = 65_536
"""Per snapshot; a bound candidate takes about 300 bytes with the shipped model."""


class HeadRuns:
    """Runs of the head bound to candidates that are asked for again and again.

    Candidates of a snapshot differ from request to request in their features alone; the rest stays bound.
    """

    def __init__(self) -> None:
        self._idle: dict[object, list[BoundRun]] = {}
        self._candidates = 0

    def idle(self, candidates: Candidates) -> list[BoundRun] | None:
        """Runs bound to these candidates that are not in use; None where it does not pay to bind any.

        Binding costs more than a run, so it begins the second time candidates are asked for.
        """
        if candidates.kept is None:
            return None
        idle = self._idle.get(candidates.kept)
        if idle is None and self._candidates + len(candidates) <= MAXIMUM_BOUND_CANDIDATES:
            self._candidates += len(candidates)
            self._idle[candidates.kept] = []
        return idle


@dataclass(frozen=True, slots=True)
class EncodedSnapshot:
    """What the encoder says of a snapshot.

    Attributes:
        replica_context: float32 [R, H].
        access_point_context: float32 [A, H].
        head_runs: see its class.
    """

    replica_context: Float32Array
    access_point_context: Float32Array
    head_runs: HeadRuns


class OnnxDispatch:
    """Runs the encoder once per snapshot and the head once per decision.

    Attributes:
        name: of the bundle's policy.
        version: of the bundle.
        sampling_temperature: from the manifest.
    """

    learned = True
    shares_picks = False

    def __init__(self, bundle: Bundle) -> None:
        """Serves a bundle of kind ``dispatch``."""
        self.bundle = bundle
        self.name = bundle.manifest.policy
        self.version = bundle.manifest.version
        self.sampling_temperature = bundle.manifest.sampling_temperature
        self._run_encoder = bundle.sessions[ENCODER].run
        self._head = bundle.sessions[HEAD]
        self._topologies: WeakKeyDictionary[TopologyTable, dict[str, NDArray[Any]]] = WeakKeyDictionary()

    def prepare(self, table: LoadTable) -> EncodedSnapshot:
        """Runs the encoder."""
        replica_context, access_point_context = self._run_encoder(
            {
                **self._topology_inputs(table.static),
                "node_features": table.node_features,
                "access_point_features": table.access_point_features,
                "link_features": table.link_features,
                "replica_features": table.replica_features,
            }
        )
        return EncodedSnapshot(replica_context, access_point_context, HeadRuns())

    def score(
        self, candidates: Candidates, prepared: EncodedSnapshot, random: np.random.Generator
    ) -> Float32Array:
        """Runs the head: logits, float32 [C]."""
        idle = prepared.head_runs.idle(candidates)
        if idle is None:
            logits: Float32Array = self._head.run(_head_inputs(candidates, prepared))[0]
            return logits
        try:
            # Taken out while in use, so that no other thread writes to its arrays.
            run = idle.pop()
        except IndexError:
            scores = np.empty(len(candidates), np.float32)
            run = self._head.bind(_head_inputs(candidates, prepared), {"score": scores})
        else:
            np.copyto(run.inputs["request_features"], candidates.features)
        run.run()
        logits = run.outputs["score"].copy()
        idle.append(run)
        return logits

    def _topology_inputs(self, static: TopologyTable) -> dict[str, NDArray[Any]]:
        """The encoder inputs that no load changes."""
        inputs = self._topologies.get(static)
        if inputs is None:
            topology = static.topology
            inputs = self._topologies[static] = {
                "node_access_point": _int64(topology.nodes.access_point),
                "access_point_system": _int64(topology.access_points.system),
                "systems": np.zeros(topology.system_count, np.float32),
                "link_source": _int64(topology.links.source),
                "link_target": _int64(topology.links.target),
                "replica_node": _int64(topology.replicas.node),
            }
        return inputs


def _head_inputs(candidates: Candidates, prepared: EncodedSnapshot) -> dict[str, NDArray[Any]]:
    return {
        "replica_context": prepared.replica_context.take(candidates.replica, axis=0),
        "origin_context": prepared.access_point_context.take(candidates.queries.access_point, axis=0),
        "segment": candidates.segment,
        "request_features": candidates.features,
    }


def _int64(rows: NDArray[np.integer[Any]]) -> Int64Array:
    return rows.astype(np.int64)
