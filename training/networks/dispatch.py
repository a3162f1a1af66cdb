"""The networks of cMMAC dispatch: a graph encoder, an actor head and a central critic.

KaiS gives every access point an actor with a fixed number of outputs and a critic over the stacked state, so that
a model serves exactly the system it was trained on. Ours keeps the roles and makes them scale-free: one encoder
shared by nodes, access points and links, one head shared by candidates, one critic over pooled embeddings.

Two speeds: the encoder runs once per snapshot and ends in linear projections that the head only has to add up, so
a request costs the head alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from policy_server.features.schema import FeatureSchema

NORMALISED_BOUND = 6.0


@dataclass(frozen=True)
class DispatchNetworkSizes:
    """Widths of the layers."""

    embedding: int = 32
    """Width of node, access point and system embeddings."""
    context: int = 48
    """Width of the projections the head adds up, and of its hidden layer."""


class Normaliser(nn.Module):
    """Brings features to about zero mean and unit scale, then clips; part of the exported graph.

    ``sign(x) * log(1 + |x|)`` first, because counts, seconds and fractions above 1 are heavy-tailed.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("scale", torch.ones(width))

    def forward(self, values: Tensor) -> Tensor:
        """float32 [rows, width] -> float32 [rows, width]."""
        squashed = torch.sign(values) * torch.log1p(torch.abs(values))
        return torch.clamp((squashed - self.mean) * self.scale, -NORMALISED_BOUND, NORMALISED_BOUND)

    @torch.no_grad()
    def fit(self, values: Tensor) -> None:
        """Takes mean and scale from sample rows, float32 [rows, width]; constant columns keep scale 1."""
        squashed = torch.sign(values) * torch.log1p(torch.abs(values))
        self.mean.copy_(squashed.mean(0))
        deviation = squashed.std(0)
        self.scale.copy_(
            torch.where(deviation > 1e-4, 1.0 / deviation.clamp(min=1e-4), torch.ones_like(deviation))
        )


def segment_mean(values: Tensor, segment: Tensor, count: Tensor) -> Tensor:
    """Mean of the rows of each segment; zeros for empty segments.

    Args:
        values: float32 [rows, width].
        segment: int64 [rows].
        count: any tensor whose first dimension is the number of segments.
    """
    sums = torch.zeros((count.shape[0], values.shape[1]), dtype=values.dtype, device=values.device)
    sums = sums.index_add(0, segment, values)
    sizes = torch.zeros((count.shape[0],), dtype=values.dtype, device=values.device)
    # Ones made of the segment alone: in an exported graph every mean over it then shares one count.
    sizes = sizes.index_add(0, segment, torch.ones_like(segment, dtype=values.dtype))
    return sums / sizes.clamp(min=1.0).unsqueeze(1)


class SystemEncoder(nn.Module):
    """Embeds nodes, access points and whole systems by messages along the real topology.

    Node -> access point: mean over its nodes. Access point -> access point: each link carries what lies at its far
    end back to where requests would leave from. Access point -> system: mean. Every level has its own transform, as
    in the paper's hierarchical encoding (KaiS section on GNN-based system state encoding).
    """

    def __init__(self, schema: FeatureSchema, width: int) -> None:
        super().__init__()
        self.node_norm = Normaliser(len(schema.node))
        self.access_point_norm = Normaliser(len(schema.access_point))
        self.link_norm = Normaliser(len(schema.link))
        self.node = nn.Sequential(nn.Linear(len(schema.node), width), nn.ReLU(), nn.Linear(width, width))
        self.access_point = nn.Linear(len(schema.access_point) + width, width)
        self.message = nn.Linear(width + len(schema.link), width)
        self.update = nn.Linear(2 * width, width)
        self.system = nn.Linear(width, width)

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
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Embeddings of nodes [N, E], access points [A, E] and systems [S, E]."""
        node = torch.relu(self.node(self.node_norm(node_features)))
        access_point = torch.relu(
            self.access_point(
                torch.cat(
                    (
                        self.access_point_norm(access_point_features),
                        segment_mean(node, node_access_point, access_point_features),
                    ),
                    dim=1,
                )
            )
        )
        message = torch.relu(
            self.message(torch.cat((access_point[link_target], self.link_norm(link_features)), dim=1))
        )
        gathered = segment_mean(message, link_source, access_point_features)
        access_point = access_point + torch.relu(self.update(torch.cat((access_point, gathered), dim=1)))
        system = torch.relu(self.system(segment_mean(access_point, access_point_system, systems)))
        return node, access_point, system


class DispatchEncoder(nn.Module):
    """What a model computes once per snapshot."""

    def __init__(self, schema: FeatureSchema, sizes: DispatchNetworkSizes) -> None:
        super().__init__()
        self.system_encoder = SystemEncoder(schema, sizes.embedding)
        self.replica_norm = Normaliser(len(schema.replica))
        self.replica = nn.Linear(3 * sizes.embedding + len(schema.replica), sizes.context)
        self.replica_projection = nn.Linear(sizes.context, sizes.context)
        self.origin_projection = nn.Linear(2 * sizes.embedding, sizes.context)

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
    ) -> tuple[Tensor, Tensor]:
        """Contexts of replicas float32 [R, H] and of access points float32 [A, H].

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
        """
        node, access_point, system = self.system_encoder(
            node_features,
            node_access_point,
            access_point_features,
            access_point_system,
            systems,
            link_features,
            link_source,
            link_target,
        )
        access_point = torch.cat((access_point, system[access_point_system]), dim=1)
        replica_access_point = access_point[node_access_point[replica_node]]
        replica = torch.relu(
            self.replica(
                torch.cat(
                    (node[replica_node], replica_access_point, self.replica_norm(replica_features)), dim=1
                )
            )
        )
        return self.replica_projection(replica), self.origin_projection(access_point)


class DispatchHead(nn.Module):
    """What a model computes per request: one logit per candidate."""

    def __init__(self, schema: FeatureSchema, sizes: DispatchNetworkSizes) -> None:
        super().__init__()
        self.request_norm = Normaliser(len(schema.request))
        self.request = nn.Linear(len(schema.request), sizes.context)
        self.hidden = nn.Linear(sizes.context, sizes.context)
        self.score = nn.Linear(sizes.context, 1)
        self.shortcut = nn.Linear(len(schema.request), 1, bias=False)

    def forward(
        self, replica_context: Tensor, origin_context: Tensor, segment: Tensor, request_features: Tensor
    ) -> Tensor:
        """Logits float32 [C].

        Args:
            replica_context: float32 [C, H], encoder output of each candidate's replica.
            origin_context: float32 [Q, H], encoder output of each query's access point.
            segment: int64 [C], query of each candidate.
            request_features: float32 [C, request].
        """
        request = self.request_norm(request_features)
        first = torch.relu(replica_context + origin_context[segment] + self.request(request))
        second = torch.relu(self.hidden(first))
        logits: Tensor = (self.score(second) + self.shortcut(request)).squeeze(1)
        return logits


class DispatchActor(nn.Module):
    """Encoder and head of one actor, shared by all access points."""

    def __init__(self, schema: FeatureSchema, sizes: DispatchNetworkSizes) -> None:
        super().__init__()
        self.encoder = DispatchEncoder(schema, sizes)
        self.head = DispatchHead(schema, sizes)


class CentralCritic(nn.Module):
    """Value of the whole system's state, known in training only (centralised training, decentralised execution)."""

    def __init__(self, schema: FeatureSchema, sizes: DispatchNetworkSizes) -> None:
        super().__init__()
        self.encoder = SystemEncoder(schema, sizes.embedding)
        self.value = nn.Sequential(
            nn.Linear(2 * sizes.embedding, sizes.context),
            nn.ReLU(),
            nn.Linear(sizes.context, sizes.context),
            nn.ReLU(),
            nn.Linear(sizes.context, 1),
        )

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
    ) -> Tensor:
        """Value of each system, float32 [S]; arguments as in :class:`DispatchEncoder`."""
        node, _, system = self.encoder(
            node_features,
            node_access_point,
            access_point_features,
            access_point_system,
            systems,
            link_features,
            link_source,
            link_target,
        )
        pooled = segment_mean(node, access_point_system[node_access_point], systems)
        value: Tensor = self.value(torch.cat((system, pooled), dim=1)).squeeze(1)
        return value
