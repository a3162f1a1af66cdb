"""Torch networks behind the policy protocols, for use while training."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from policy_server.cluster.snapshot import Float32Array, Int32Array
from policy_server.features.candidates import Candidates
from policy_server.features.load_table import LoadTable
from training.networks.dispatch import DispatchActor


@dataclass(frozen=True)
class EncodedSnapshot:
    """Encoder output: contexts of replicas float32 [R, H] and access points float32 [A, H]."""

    replica_context: Tensor
    access_point_context: Tensor


def system_tensors(table: LoadTable) -> tuple[Tensor, ...]:
    """The arguments of :meth:`training.networks.dispatch.SystemEncoder.forward` for one snapshot."""
    topology = table.snapshot.topology
    return (
        torch.from_numpy(table.node_features),
        _index(topology.nodes.access_point),
        torch.from_numpy(table.access_point_features),
        _index(topology.access_points.system),
        torch.zeros(topology.system_count),
        torch.from_numpy(table.link_features),
        _index(topology.links.source),
        _index(topology.links.target),
    )


def replica_tensors(table: LoadTable) -> tuple[Tensor, Tensor]:
    """The further arguments of :meth:`training.networks.dispatch.DispatchEncoder.forward`."""
    return torch.from_numpy(table.replica_features), _index(table.snapshot.topology.replicas.node)


def origin_rows(candidates: Candidates) -> Tensor:
    """int64 [Q]: access point of each query."""
    return _index(candidates.queries.access_point)


class TorchDispatch:
    """A dispatch policy over live torch networks, sampling from its softmax.

    Attributes:
        latest_scores: float32 [C], logits of the last call of :meth:`score`, for the log-probabilities of the
            behaviour policy.
    """

    name = "kais"
    version = "training"
    learned = True
    shares_picks = False

    def __init__(self, actor: DispatchActor, sampling_temperature: float = 1.0) -> None:
        self.actor = actor
        self.sampling_temperature = sampling_temperature
        self.latest_scores: Float32Array = np.zeros(0, np.float32)

    @torch.no_grad()
    def prepare(self, table: LoadTable) -> EncodedSnapshot:
        """Runs the encoder."""
        return EncodedSnapshot(*self.actor.encoder(*system_tensors(table), *replica_tensors(table)))

    @torch.no_grad()
    def score(
        self, candidates: Candidates, prepared: EncodedSnapshot, random: np.random.Generator
    ) -> Float32Array:
        """Runs the head."""
        logits: Tensor = self.actor.head(
            prepared.replica_context[torch.from_numpy(candidates.replica)],
            prepared.access_point_context[origin_rows(candidates)],
            torch.from_numpy(candidates.segment),
            torch.from_numpy(candidates.features),
        )
        self.latest_scores = logits.numpy()
        return self.latest_scores


def _index(rows: Int32Array) -> Tensor:
    return torch.from_numpy(rows.astype(np.int64))
