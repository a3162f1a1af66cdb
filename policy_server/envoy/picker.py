"""The endpoint picker, below both services: facts of a request in, endpoints or a refusal out."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from policy_server.api.dispatch_logic import DispatchLogic
from policy_server.api.errors import InvalidArgumentError, NothingCanServeError, RequestError
from policy_server.api.questions import DispatchQuestion
from policy_server.cluster.lease import Lease
from policy_server.cluster.snapshot import Topology
from policy_server.cluster.state_store import StateStore
from policy_server.envoy.addresses import canonical
from policy_server.envoy.request_mapping import RequestFacts
from policy_server.policies.dispatch import DispatchView
from policy_server.telemetry.metrics import ServerMetrics

_LOGGER = logging.getLogger(__name__)


class RefusalReason(Enum):
    """Why a request gets no endpoint; the value is what logs and metrics call it."""

    NOTHING_CAN_SERVE = "nothing_can_serve"
    SUBSET_EMPTY = "subset_empty"
    SHED = "shed"
    FAULT = "fault"


@dataclass(frozen=True)
class Refusal:
    """No endpoint for a request.

    Attributes:
        reason: in a word.
        message: for whoever reads the answer.
        retry_after_milliseconds: how long the caller should wait before trying again.
    """

    reason: RefusalReason
    message: str
    retry_after_milliseconds: int

    @property
    def shed(self) -> bool:
        """Whether endpoints are ready, but busy."""
        return self.reason is RefusalReason.SHED


class Outcome(Enum):
    """How a picked request ended; the value is what metrics call it."""

    SERVED = "served"
    REROUTED = "rerouted"
    FAILED = "failed"
    UNATTRIBUTED = "unattributed"
    NO_RESPONSE = "no_response"


class PickedRequest:
    """A request that was sent on its way.

    Attributes:
        endpoints: addresses, best first, separated by commas.
    """

    __slots__ = ("_clock", "_first", "_lease", "_picked_at", "_picker", "_responded", "endpoints")

    def __init__(
        self, picker: EndpointPicker, endpoints: Sequence[str], lease: Lease, clock: Callable[[], float]
    ) -> None:
        self.endpoints = ",".join(endpoints)
        self._first = endpoints[0]
        self._picker = picker
        self._lease: Lease | None = lease
        self._clock = clock
        self._picked_at = clock()
        self._responded = False

    def respond(self, served: str | None, *, failed: bool) -> None:
        """Response headers came.

        Args:
            served: address that they came from, if that is known.
            failed: whether the response is a failure of the server.
        """
        if self._lease is None or self._responded:
            return
        self._responded = True
        if served is None:
            self._picker.count(Outcome.UNATTRIBUTED)
            return
        endpoint = self._first if served == self._first else self._picker.endpoint_at(served)
        if endpoint is None:
            self._picker.count(Outcome.UNATTRIBUTED)
            self._lease.end()
            return
        if endpoint != self._first:
            self._lease.move(endpoint)
        if failed:
            # How fast it failed says nothing about how fast it serves.
            self._picker.count(Outcome.FAILED)
            return
        self._picker.count(Outcome.SERVED if endpoint == self._first else Outcome.REROUTED)
        self._picker.observe_latency(endpoint, self._clock() - self._picked_at)

    def end(self) -> None:
        """The request has ended, in whichever way. May be called again; it counts once."""
        if self._lease is None:
            return
        self._lease.end()
        self._lease = None
        if not self._responded:
            self._picker.count(Outcome.NO_RESPONSE)
        self._picker.left()


class EndpointPicker:
    """Picks endpoints for proxied requests. All methods run on the event loop that owns the state.

    Args:
        logic: decides.
        store: takes in response times.
        metrics: counts refusals and outcomes.
        maximum_endpoints: how many endpoints to list.
        maximum_in_flight: picked requests that have not ended; beyond it requests are shed.
        saturated_from: requests outstanding over slots, from which on requests of a priority below zero are shed.
        clock: monotonic seconds.

    Attributes:
        in_flight: picked requests that have not ended.
    """

    def __init__(
        self,
        logic: DispatchLogic,
        store: StateStore[DispatchView],
        metrics: ServerMetrics,
        *,
        maximum_endpoints: int,
        maximum_in_flight: int,
        saturated_from: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.in_flight = 0
        self._logic = logic
        self._store = store
        self._metrics = metrics
        self._alternatives = maximum_endpoints - 1
        self._maximum_in_flight = maximum_in_flight
        self._saturated_from = saturated_from
        self._clock = clock
        self._pool: _Pool | None = None

    def pick(self, facts: RequestFacts, subset: Sequence[str] | None) -> PickedRequest | Refusal:
        """The endpoints for a request, or why there are none. Never raises.

        Args:
            facts: of the request.
            subset: addresses the choice is restricted to, or None.
        """
        try:
            return self._pick(facts, subset)
        except NothingCanServeError as error:
            return self._refuse(RefusalReason.NOTHING_CAN_SERVE, str(error))
        except InvalidArgumentError as error:
            # The pool has no such service: nothing in it can serve the request, as far as the proxy is concerned.
            return self._refuse(RefusalReason.NOTHING_CAN_SERVE, str(error))
        except RequestError as error:
            return self._refuse(RefusalReason.FAULT, str(error))
        except Exception:
            _LOGGER.exception("a pick failed")
            return self._refuse(RefusalReason.FAULT, "internal error; the server's log has the details")

    def count(self, outcome: Outcome) -> None:
        """Counts how a request ended."""
        self._metrics.proxied(outcome.value)

    def expected_seconds(self, picked: PickedRequest) -> float:
        """How long a request is likely to take: as its endpoint's responses took lately, else its execution."""
        held = self._store.held
        endpoint = picked.endpoints.partition(",")[0]
        replica = None if held is None else held.snapshot.topology.replica_index.get(endpoint)
        if held is None or replica is None:
            return 0.0
        lately = held.snapshot.load.replica_latency_seconds.item(replica)
        return lately if lately == lately else held.view.static.execution_seconds.item(replica)

    def endpoint_at(self, address: str) -> str | None:
        """The endpoint of the state that has this address; None if there is none."""
        pool = self._current_pool()
        return None if pool is None else pool.endpoint_at(address)

    def observe_latency(self, endpoint: str, seconds: float) -> None:
        """Takes in how long an endpoint took from pick to response headers."""
        self._store.observe_latency(endpoint, seconds)

    def left(self) -> None:
        """A picked request has ended."""
        self.in_flight -= 1

    def _pick(self, facts: RequestFacts, subset: Sequence[str] | None) -> PickedRequest | Refusal:
        if self.in_flight >= self._maximum_in_flight:
            return self._shed(f"{self.in_flight} requests are in flight")
        if subset is not None and not subset:
            return self._refuse(RefusalReason.SUBSET_EMPTY, "the endpoint subset is empty: nothing may serve")
        pool = self._current_pool()
        if pool is None:
            return self._refuse(RefusalReason.NOTHING_CAN_SERVE, "no state is held yet")
        if pool.named_only is not None:
            return self._refuse(
                RefusalReason.NOTHING_CAN_SERVE,
                f"no endpoint of the held state is an address, such as 10.0.0.1:8080: {pool.named_only!r}; report "
                "replicas by ip:port",
            )
        service = facts.service or pool.only_service
        if not service:
            return self._refuse(RefusalReason.NOTHING_CAN_SERVE, "the request names no service")
        access_point, malformed = facts.access_point, facts.malformed
        if access_point not in pool.access_points:
            malformed = malformed or bool(access_point)
            access_point = pool.default_access_point
        question = DispatchQuestion(
            service,
            access_point,
            facts.deadline_seconds,
            facts.payload_bytes,
            "",
            pool.restricted(subset),
            self._alternatives,
            None,
            malformed,
        )
        if facts.priority < 0:
            saturation = self._logic.saturation(question)
            if saturation >= self._saturated_from:
                return self._shed(
                    f"{saturation:.3g} requests per slot are outstanding at {service}, "
                    f"priority {facts.priority} is served below {self._saturated_from:g}"
                )
        endpoints, lease = self._logic.dispatch_leased(question, facts.deadline_seconds or math.inf)
        self.in_flight += 1
        return PickedRequest(self, endpoints, lease, self._clock)

    def _shed(self, message: str) -> Refusal:
        self._metrics.shed()
        return self._refuse(RefusalReason.SHED, f"{message}; retry later")

    def _current_pool(self) -> _Pool | None:
        held = self._store.held
        if held is None:
            return None
        pool = self._pool
        if pool is None or pool.topology is not held.snapshot.topology:
            pool = self._pool = _Pool(held.snapshot.topology)
        return pool

    def _refuse(self, reason: RefusalReason, message: str) -> Refusal:
        self._metrics.refused(reason.value)
        return Refusal(reason, message, self._logic.limits.retry_after_milliseconds)


class _Pool:
    """What the picker wants to know of a topology, computed once.

    Attributes:
        topology: described.
        access_points: names that requests may enter at.
        default_access_point: for requests that name none, or none there is; empty where there is none at all.
        only_service: the service, where there is but one; else empty.
        named_only: an endpoint, where there are some but none is an address; else None.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        edge = [topology.access_points.names[row] for row in np.flatnonzero(~topology.access_points.is_cloud)]
        self.access_points = frozenset(topology.access_points.names)
        self.default_access_point = (edge or list(topology.access_points.names) or [""])[0]
        services = topology.services.names
        self.only_service = services[0] if len(services) == 1 else ""
        spellings = {endpoint: canonical(endpoint) for endpoint in topology.replicas.endpoints}
        self._endpoint_of = {spelling: endpoint for endpoint, spelling in spellings.items() if spelling}
        self._addressable = None if all(spellings.values()) else list(self._endpoint_of.values())
        self.named_only = next(iter(spellings), None) if not self._endpoint_of else None

    def restricted(self, subset: Sequence[str] | None) -> list[str] | None:
        """The endpoints that may be picked; None: all. Names that are no address are no use to a proxy."""
        if subset is None:
            return self._addressable
        found = map(self.endpoint_at, subset)
        return [endpoint for endpoint in found if endpoint is not None]

    def endpoint_at(self, address: str) -> str | None:
        """The endpoint that has this address; None if there is none."""
        return self._endpoint_of.get(canonical(address) or "")
