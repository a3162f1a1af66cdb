"""The networks of GPG orchestration: a hierarchical graph encoder, a node scorer and an action head.

KaiS encodes edge nodes, then what lies below each access point, then the whole system, with transforms of their own
per level, each of the form y = h(sum of f(y') over what lies below) + x. Ours does so over the real graph (means in
place of sums, so that a model serves systems of any size) and passes messages along the links between access points,
so that the topology matters. What is asked for enters as one more level below the access points: a row per service
and access point.

One set of weights serves any number of nodes, links and services; the order of rows does not matter. Signatures:
:func:`policy_server.runtime.graph_contract.orchestration_signatures`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from policy_server.features.orchestration_schema import ORCHESTRATION_SCHEMA, OrchestrationSchema
from training.networks.dispatch import Normaliser, segment_mean

LINK_ROUNDS = 2
"""Rounds of messages along links: after two an access point knows of those two links away."""


@dataclass(frozen=True)
class OrchestrationNetworkSizes:
    """Widths of the layers."""

    embedding: int = 32
    """Width of node embeddings and of access point and system summaries."""
    hidden: int = 48
    """Width of the hidden layers of node scorer and action head."""


class GraphEncoder(nn.Module):
    """Embeddings of nodes, summaries of access points and systems, and the logit by which nodes are picked."""

    def __init__(self, schema: OrchestrationSchema, sizes: OrchestrationNetworkSizes) -> None:
        super().__init__()
        width = sizes.embedding
        self.node_norm = Normaliser(len(schema.node))
        self.access_point_norm = Normaliser(len(schema.access_point))
        self.link_norm = Normaliser(len(schema.link))
        self.replica_norm = Normaliser(len(schema.replica))
        self.demand_norm = Normaliser(len(schema.demand))
        self.replica = _two_layers(len(schema.replica), width, width)
        self.node = _two_layers(len(schema.node) + width, width, width)
        self.demand = _two_layers(len(schema.demand), width, width)
        self.access_point = nn.Linear(len(schema.access_point) + 2 * width, width)
        self.message = nn.Linear(width + len(schema.link), width)
        self.update = nn.Linear(2 * width, width)
        self.system = nn.Linear(width, width)
        self.context = nn.Linear(3 * width, width)
        self.node_score = _two_layers(2 * width, sizes.hidden, 1)

    def forward(
        self,
        node_features: Tensor,
        node_access_point: Tensor,
        access_point_features: Tensor,
        access_point_system: Tensor,
        systems: Tensor,
        link_features: Tensor,
        link_source: Tensor,
        link_target: Tensor,
        replica_features: Tensor,
        replica_node: Tensor,
        demand_features: Tensor,
        demand_access_point: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """node_embedding float32 [N, E], access_point_summary [A, E], system_summary [S, E], node_score [N].

        Args:
            node_features: float32 [N, node].
            node_access_point: int64 [N].
            access_point_features: float32 [A, access_point].
            access_point_system: int64 [A].
            systems: float32 [S], any values; carries the number of systems.
            link_features: float32 [L, link].
            link_source: int64 [L].
            link_target: int64 [L].
            replica_features: float32 [R, replica].
            replica_node: int64 [R].
            demand_features: float32 [D, demand].
            demand_access_point: int64 [D].
        """
        replica = torch.relu(self.replica(self.replica_norm(replica_features)))
        node = torch.relu(
            self.node(
                torch.cat(
                    (self.node_norm(node_features), segment_mean(replica, replica_node, node_features)), dim=1
                )
            )
        )
        demand = torch.relu(self.demand(self.demand_norm(demand_features)))
        access_point = torch.relu(
            self.access_point(
                torch.cat(
                    (
                        self.access_point_norm(access_point_features),
                        segment_mean(node, node_access_point, access_point_features),
                        segment_mean(demand, demand_access_point, access_point_features),
                    ),
                    dim=1,
                )
            )
        )
        link = self.link_norm(link_features)
        for _ in range(LINK_ROUNDS):
            message = torch.relu(self.message(torch.cat((access_point[link_target], link), dim=1)))
            gathered = segment_mean(message, link_source, access_point_features)
            access_point = access_point + torch.relu(self.update(torch.cat((access_point, gathered), dim=1)))
        system = torch.relu(self.system(segment_mean(access_point, access_point_system, systems)))
        above = torch.cat(
            (node, access_point[node_access_point], system[access_point_system[node_access_point]]), dim=1
        )
        context = torch.relu(self.context(above))
        score: Tensor = self.node_score(torch.cat((node, context), dim=1)).squeeze(1)
        return node + context, access_point, system, score


class StackedEncoder(nn.Module):
    """The ablation: the state of a system as one vector of a fixed length instead of a graph.

    Nodes are stacked in the order of their rows, so this encoder knows no links, and what does not fit into the vector
    falls into its last place.

    Args:
        schema: of the features.
        sizes: of the layers.
        nodes: most nodes of one system.
    """

    def __init__(self, schema: OrchestrationSchema, sizes: OrchestrationNetworkSizes, nodes: int) -> None:
        super().__init__()
        width = sizes.embedding
        self.nodes = nodes
        self.node_norm = Normaliser(len(schema.node))
        self.access_point_norm = Normaliser(len(schema.access_point))
        self.link_norm = Normaliser(len(schema.link))
        self.replica_norm = Normaliser(len(schema.replica))
        self.demand_norm = Normaliser(len(schema.demand))
        self.node = _two_layers(len(schema.node), width, width)
        self.stack = _two_layers(nodes * len(schema.node), 2 * sizes.hidden, width)
        self.node_score = nn.Linear(width, nodes)

    def forward(
        self,
        node_features: Tensor,
        node_access_point: Tensor,
        access_point_features: Tensor,
        access_point_system: Tensor,
        systems: Tensor,
        link_features: Tensor,
        link_source: Tensor,
        link_target: Tensor,
        replica_features: Tensor,
        replica_node: Tensor,
        demand_features: Tensor,
        demand_access_point: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """As :meth:`GraphEncoder.forward`; access point summaries are zero."""
        node_system = access_point_system[node_access_point]
        belongs = (node_system[:, None] == torch.arange(systems.shape[0])).to(torch.int64)
        place = ((belongs.cumsum(0) * belongs).sum(1) - 1).clamp(max=self.nodes - 1)
        features = self.node_norm(node_features)
        stacked = torch.zeros(systems.shape[0] * self.nodes, features.shape[1])
        stacked = stacked.index_add(0, node_system * self.nodes + place, features)
        system = torch.relu(self.stack(stacked.reshape(systems.shape[0], -1)))
        node = torch.relu(self.node(features))
        score = self.node_score(system).reshape(-1)[node_system * self.nodes + place]
        return node, torch.zeros(access_point_features.shape[0], node.shape[1]), system, score


class ActionHead(nn.Module):
    """Scores of the 2W + 1 actions of each picked node; a service is known by its features alone."""

    def __init__(self, schema: OrchestrationSchema, sizes: OrchestrationNetworkSizes) -> None:
        super().__init__()
        pair = len(schema.demand) + len(schema.pair)
        self.pair_norm = Normaliser(pair)
        self.context = nn.Linear(3 * sizes.embedding, sizes.hidden)
        self.pair = nn.Linear(pair, sizes.hidden)
        self.hidden = nn.Linear(sizes.hidden, sizes.hidden)
        self.scores = nn.Linear(sizes.hidden, 2)
        self.shortcut = nn.Linear(pair, 2, bias=False)
        self.nothing = _two_layers(sizes.hidden, sizes.hidden, 1)

    def forward(
        self,
        node_embedding: Tensor,
        access_point_summary: Tensor,
        system_summary: Tensor,
        pair_features: Tensor,
        pair_node: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """delete_score float32 [P], nothing_score [K], add_score [P].

        Args:
            node_embedding: float32 [K, E], of each picked node.
            access_point_summary: float32 [K, E], of its access point.
            system_summary: float32 [K, E], of its system.
            pair_features: float32 [P, demand + pair].
            pair_node: int64 [P], picked node of each pair.
        """
        context = self.context(torch.cat((node_embedding, access_point_summary, system_summary), dim=1))
        pair = self.pair_norm(pair_features)
        first = torch.relu(context[pair_node] + self.pair(pair))
        scores = self.scores(torch.relu(self.hidden(first))) + self.shortcut(pair)
        nothing: Tensor = self.nothing(torch.relu(context)).squeeze(1)
        return scores[:, 0], nothing, scores[:, 1]


class OrchestrationActor(nn.Module):
    """Encoder and action head.

    Args:
        schema: of the features.
        sizes: of the layers.
        stacked_nodes: most nodes of a system, for the state-stacking ablation; 0: the graph encoder.
    """

    def __init__(
        self, schema: OrchestrationSchema, sizes: OrchestrationNetworkSizes, stacked_nodes: int = 0
    ) -> None:
        super().__init__()
        self.encoder: GraphEncoder | StackedEncoder = (
            StackedEncoder(schema, sizes, stacked_nodes) if stacked_nodes else GraphEncoder(schema, sizes)
        )
        self.head = ActionHead(schema, sizes)


class DemandCritic(nn.Module):
    """What will become of each service in each system, known in training only.

    The value of a service is the sum over access points of what a head says of its demand there.
    """

    def __init__(self, schema: OrchestrationSchema, sizes: OrchestrationNetworkSizes) -> None:
        super().__init__()
        self.encoder = GraphEncoder(schema, sizes)
        self.demand_norm = self.encoder.demand_norm
        self.value = _two_layers(len(schema.demand) + 2 * sizes.embedding, sizes.hidden, 2)

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        """float32 [S, W]; arguments of :meth:`GraphEncoder.forward` by name."""
        _, access_point, system, _ = self.encoder(**inputs)
        origin = inputs["demand_access_point"]
        demand_system = inputs["access_point_system"][origin]
        systems, access_points = inputs["systems"].shape[0], inputs["access_point_features"].shape[0]
        services = len(origin) // max(access_points, 1)
        features = inputs["demand_features"]
        heads = self.value(
            torch.cat((self.demand_norm(features), access_point[origin], system[demand_system]), dim=1)
        )
        # Failures grow with demand, whose share of the system's CPU is one of the features.
        volume = features[:, _DEMAND_FRACTION].clamp(min=0.0)
        of_demand = -nn.functional.softplus(heads[:, 0]) * volume + heads[:, 1] * 1e-2
        service = torch.arange(len(origin)) % max(services, 1)
        values = torch.zeros(systems * services).index_add(0, demand_system * services + service, of_demand)
        return values.reshape(systems, services)


_DEMAND_FRACTION = ORCHESTRATION_SCHEMA.demand.index("access_point_demand_fraction")


def _two_layers(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))
