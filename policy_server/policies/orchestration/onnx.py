"""The orchestration policy behind a model bundle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np

from policy_server.cluster.snapshot import Float32Array, Float64Array, Int64Array, Snapshot
from policy_server.features.graph import OrchestrationGraph, concatenated, encoder_inputs
from policy_server.policies.decision_origin import FallbackReason
from policy_server.policies.finite_inputs import all_finite
from policy_server.policies.orchestration.memory import FrameMemory
from policy_server.policies.orchestration.plan import FramePlan, OrchestrationQuery
from policy_server.policies.orchestration.policy import FrameDecision
from policy_server.policies.orchestration.stepwise import (
    DEFAULT_STEPS,
    NO_NODE,
    NodePicks,
    action_scores,
    by_system,
    pick_actions,
    pick_best_actions,
    pick_nodes,
)
from policy_server.runtime.bundle import Bundle
from policy_server.runtime.graph_contract import ENCODER, HEAD


@dataclass(frozen=True, slots=True)
class EncodedGraph:
    """What the encoder says of a snapshot.

    Attributes:
        node_embedding: float32 [N, E].
        access_point_summary: float32 [A, E].
        system_summary: float32 [S, E].
        node_score: float32 [N].
        finite_inputs: whether the features it was computed from are finite.
    """

    node_embedding: Float32Array
    access_point_summary: Float32Array
    system_summary: Float32Array
    node_score: Float32Array
    finite_inputs: bool


class OnnxOrchestration:
    """Runs the encoder once per snapshot, of all snapshots of a batch together, and the head once per batch.

    Attributes:
        name: of the bundle's policy.
        version: of the bundle.
        sampling_temperature: from the manifest.
        steps: H, nodes picked where a query sets no number of actions; from the manifest.
    """

    learned = True

    def __init__(self, bundle: Bundle) -> None:
        """Serves a bundle of kind ``orchestration``."""
        self.bundle = bundle
        self.name = bundle.manifest.policy
        self.version = bundle.manifest.version
        self.sampling_temperature = bundle.manifest.sampling_temperature
        self.steps: int = bundle.manifest.maximum_actions or DEFAULT_STEPS
        self._encoder = bundle.sessions[ENCODER]
        self._head = bundle.sessions[HEAD]
        self._encoded: WeakKeyDictionary[OrchestrationGraph, EncodedGraph] = WeakKeyDictionary()

    def observe(self, snapshot: Snapshot, memory: FrameMemory) -> None:
        """Nothing to see."""

    def decide(
        self, queries: Sequence[OrchestrationQuery], random: np.random.Generator
    ) -> list[FrameDecision]:
        """The answer to each query."""
        encoded = self._encode([query.graph for query in queries])
        plans = [FramePlan(query) for query in queries]
        picks: dict[int, NodePicks] = {}
        trouble = [FallbackReason.UNSPECIFIED] * len(queries)
        for position, (plan, of_graph) in enumerate(zip(plans, encoded, strict=True)):
            if not of_graph.finite_inputs:
                trouble[position] = FallbackReason.NON_FINITE_INPUT
            elif not all_finite(of_graph.node_score):
                trouble[position] = FallbackReason.NON_FINITE_OUTPUT
            else:
                most = plan.options.maximum_actions
                picks[position] = pick_nodes(
                    of_graph.node_score,
                    plan,
                    random,
                    steps=self.steps if most is None else most,
                    temperature=self.sampling_temperature,
                    with_log_probability=False,
                )
        nodes = [picked.node[picked.node != NO_NODE] for picked in picks.values()]
        scores = self._score_actions(
            [queries[position].graph for position in picks], [encoded[position] for position in picks], nodes
        )
        for (position, picked), of_nodes in zip(picks.items(), scores, strict=True):
            if not all_finite(of_nodes):
                trouble[position] = FallbackReason.NON_FINITE_OUTPUT
                continue
            padded = by_system(picked, of_nodes)
            if self.sampling_temperature:
                pick_actions(
                    padded,
                    picked,
                    plans[position],
                    random,
                    temperature=self.sampling_temperature,
                    with_log_probability=False,
                )
            else:
                pick_best_actions(padded, picked, plans[position], random)
        return [FrameDecision(plan, reason) for plan, reason in zip(plans, trouble, strict=True)]

    def score_additions(self, query: OrchestrationQuery, service: int) -> Float64Array:
        """Node score plus score of adding above that of doing nothing, float64 [N]; -inf where not feasible."""
        graph = query.graph
        (encoded,) = self._encode([graph])
        nodes = np.arange(len(encoded.node_score), dtype=np.int64)
        nodes = nodes[FramePlan(query).additions(nodes)[:, service]]
        values = np.full(len(encoded.node_score), -np.inf)
        (scores,) = self._score_actions([graph], [encoded], [nodes])
        nothing = graph.services
        values[nodes] = encoded.node_score[nodes] + scores[:, nothing + 1 + service] - scores[:, nothing]
        return values

    def _encode(self, graphs: Sequence[OrchestrationGraph]) -> list[EncodedGraph]:
        fresh = [graph for graph in dict.fromkeys(graphs) if graph not in self._encoded]
        if fresh:
            inputs = encoder_inputs(fresh)
            outputs = self._encoder.run(inputs)
            nodes = access_points = systems = 0
            for graph in fresh:
                topology = graph.snapshot.topology
                of_nodes = slice(nodes, nodes := nodes + len(topology.nodes.names))
                of_access_points = slice(
                    access_points, access_points := access_points + len(topology.access_points.names)
                )
                of_systems = slice(systems, systems := systems + graph.systems)
                self._encoded[graph] = EncodedGraph(
                    outputs[0][of_nodes],
                    outputs[1][of_access_points],
                    outputs[2][of_systems],
                    outputs[3][of_nodes],
                    _has_finite_features(graph),
                )
        return [self._encoded[graph] for graph in graphs]

    def _score_actions(
        self,
        graphs: Sequence[OrchestrationGraph],
        encoded: Sequence[EncodedGraph],
        nodes: Sequence[Int64Array],
    ) -> list[Float32Array]:
        """float32 [K, 2W + 1] of the K picked nodes of each graph."""
        if not any(map(len, nodes)):
            return [np.zeros((0, 2 * graph.services + 1), np.float32) for graph in graphs]
        embeddings, of_access_points, of_systems, features, pair_nodes = [], [], [], [], []
        first = 0
        for graph, of_graph, rows in zip(graphs, encoded, nodes, strict=True):
            access_point = graph.snapshot.topology.nodes.access_point[rows]
            embeddings.append(of_graph.node_embedding[rows])
            of_access_points.append(of_graph.access_point_summary[access_point])
            of_systems.append(of_graph.system_summary[graph.topology.node_system[rows]])
            features.append(graph.pair_features(rows))
            numbers = np.arange(first, first := first + len(rows), dtype=np.int64)
            pair_nodes.append(np.repeat(numbers, graph.services))
        delete, nothing, add = self._head.run(
            {
                "node_embedding": concatenated(embeddings),
                "access_point_summary": concatenated(of_access_points),
                "system_summary": concatenated(of_systems),
                "pair_features": concatenated(features),
                "pair_node": concatenated(pair_nodes),
            }
        )
        scores = []
        node = pair = 0
        for graph, rows in zip(graphs, nodes, strict=True):
            of_pairs = slice(pair, pair := pair + len(rows) * graph.services)
            of_nodes = slice(node, node := node + len(rows))
            scores.append(action_scores(delete[of_pairs], nothing[of_nodes], add[of_pairs], graph.services))
        return scores


def _has_finite_features(graph: OrchestrationGraph) -> bool:
    table = graph.table
    return all(
        map(
            all_finite,
            (
                graph.node_features,
                table.access_point_features,
                table.link_features,
                table.replica_features,
                graph.demand_features,
            ),
        )
    )
