"""The life of a server: start up, serve, drain, stop.

After SIGTERM the server reports itself as not ready at once and goes on accepting calls for the drain delay, until
every balancer has noticed. Then it refuses new calls, lets those in flight finish within the grace period, flushes
telemetry within its own limit, and ends with status 0. A second signal ends the process on the spot.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import grpc

from policy_server.api.dispatch_logic import DispatchLimits, DispatchLogic
from policy_server.api.grpc_server import SERVICE_NAMES, add_services, listen, server_options
from policy_server.api.health import Health
from policy_server.api.orchestration_logic import OrchestrationLimits, OrchestrationLogic
from policy_server.api.rpc import RpcServices
from policy_server.api.scaling_logic import ScalingLogic
from policy_server.api.scaling_messages import ScalingLimits
from policy_server.cluster.snapshot import Snapshot
from policy_server.cluster.state_source import StateSource, state_source
from policy_server.cluster.state_store import StateStore
from policy_server.policies.dispatch import DispatchView
from policy_server.policies.guard import GuardObserver, GuardSettings
from policy_server.policies.orchestration.guard import OrchestrationGuardSettings
from policy_server.runtime.orchestration_registry import OrchestrationRegistry
from policy_server.runtime.registry import PolicyRegistry
from policy_server.runtime.scaling_registry import ScalingRegistry
from policy_server.settings import Settings
from policy_server.telemetry.export import Telemetry, start_telemetry
from policy_server.telemetry.metrics import ServerGauges, ServerMetrics
from policy_server.telemetry.spans import DecisionObserver, ForwardingObserver, ProblemSpans

if TYPE_CHECKING:
    from policy_server.envoy.picker_server import PickerServer
    from policy_server.kubernetes.extender.http_server import ExtenderServer

_LOGGER = logging.getLogger(__name__)


class PolicyServer:
    """A server for one event loop.

    Args:
        settings: resolved.

    Attributes:
        address: ``host:port`` it listens on, once started.
        logic: answers questions, once started.
        orchestration: answers questions about orchestration, once started.
        orchestration_registry: the orchestration policies, once started.
        picker: serves Envoy, once started, where the settings want it.
        registry: the dispatch policies, once started.
        scaling: answers questions about scaling, once started.
        scaling_registry: the dispatch policies of scaling, once started.
        store: the state, once started.
        metrics: what it counts.
        telemetry: what was started of it, once started.
        extender_url: where the scheduler extender is served, once started; None: nowhere.
    """

    address: str
    logic: DispatchLogic
    picker: PickerServer | None
    registry: PolicyRegistry
    orchestration: OrchestrationLogic
    orchestration_registry: OrchestrationRegistry
    scaling: ScalingLogic
    scaling_registry: ScalingRegistry
    store: StateStore[DispatchView]
    telemetry: Telemetry

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._health = Health(SERVICE_NAMES)
        self.metrics = ServerMetrics()
        self._source_stopped = threading.Event()
        self._should_exit = asyncio.Event()
        self._drains = True
        self._stopping = False
        self._extender: ExtenderServer | None = None
        self.extender_url: str | None = None

    async def serve(self, announce: Callable[[PolicyServer], None]) -> None:
        """Starts, calls ``announce`` when the server is listening, and serves until a signal asks it to stop."""
        self._install_signal_handlers()
        await self.startup()
        # What was loaded stays; the garbage collector need not look at it again and again.
        gc.collect()
        gc.freeze()
        announce(self)
        await self._should_exit.wait()
        await self.shutdown(drain=self._drains)

    async def startup(self) -> None:
        """Loads the policies, then opens the port.

        Raises:
            OSError: the address cannot be bound.
            BundleError: there is no directory of models.
            UnknownPolicyError: an active policy, a fallback or the placement policy is not known.
            StateSourceError: the state source cannot be had.
            TelemetryError: the metrics port cannot be bound.
        """
        settings = self.settings
        source = None
        if settings.state_source is not None:
            source = state_source(settings.state_source, settings.state_options)
        self._server = grpc.aio.server(
            options=server_options(
                maximum_message_bytes=settings.max_message_bytes,
                maximum_connection_age_seconds=settings.max_connection_age_seconds,
            )
        )
        self.address = listen(self._server, settings.host, settings.port)
        spans = ProblemSpans()
        observer = DecisionObserver(self.metrics, spans)
        self.registry = _load_policies(settings, observer)
        self.orchestration_registry = _load_orchestration_policies(
            settings, ForwardingObserver(observer, asyncio.get_running_loop())
        )
        self.scaling_registry = _load_scaling_policies(settings, observer)
        self.store = StateStore(self._prepare)
        self.logic = DispatchLogic(
            self.store,
            self.registry,
            self.metrics,
            limits=_limits(settings),
            batch_window_seconds=settings.batch_window_seconds,
        )
        self.picker = self._listen_for_envoy(spans) if settings.envoy else None
        self.orchestration = OrchestrationLogic(
            self.store, self.orchestration_registry, self.metrics, limits=_orchestration_limits(settings)
        )
        self.scaling = ScalingLogic(
            self.scaling_registry,
            self.metrics,
            limits=_scaling_limits(settings),
            most_in_flight=settings.max_in_flight,
            retry_after_milliseconds=settings.retry_pushback_milliseconds,
        )
        self.telemetry = start_telemetry(
            self.metrics,
            self._gauges(),
            prometheus_host=settings.metrics_host,
            prometheus_port=settings.metrics_port,
        )
        if self.telemetry.tracer is not None:
            spans.send_to(self.telemetry.tracer)
        await self._health.start()
        self._services = RpcServices(self._server, self.metrics, spans)
        add_services(
            self._services,
            self.logic,
            self.orchestration,
            self.scaling,
            self.store,
            self._health,
            with_reflection=settings.reflection,
        )
        if settings.extender_port is not None:
            await self._start_extender(settings.extender_port, observer)
        await self._server.start()
        if self.picker is not None:
            await self.picker.start()
        if source is None:
            await self._health.set_ready(True)
        else:
            self._start_source(source)

    async def shutdown(self, *, drain: bool = True) -> None:
        """Stops in good order.

        Args:
            drain: whether to go on accepting calls for the drain delay first.
        """
        settings = self.settings
        self._stopping = True
        await self._health.set_ready(False)
        if self.picker is not None:
            await self.picker.set_ready(False)
        if drain:
            await asyncio.sleep(settings.drain_seconds)
        self._services.streams.finish()
        stops: list[Awaitable[None]] = [self._server.stop(settings.grace_seconds)]
        if self.picker is not None:
            stops.append(self.picker.stop(settings.grace_seconds))
        if self._extender is not None:
            stops.append(self._extender.stop())
        await asyncio.gather(*stops)
        self.orchestration.close()
        self._source_stopped.set()
        if not self.telemetry.shutdown(settings.flush_seconds):
            _LOGGER.warning("telemetry did not leave within %g s; some is lost", settings.flush_seconds)

    def _install_signal_handlers(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: signal.Signals) -> None:
        if self._should_exit.is_set():
            os._exit(128 + number)
        # Whoever presses Ctrl-C has no balancer to wait for.
        self._drains = number == signal.SIGTERM
        self._should_exit.set()

    def _prepare(self, snapshot: Snapshot, previous: DispatchView | None) -> DispatchView:
        view = DispatchView(snapshot, previous, maximum_sample_age_seconds=self.settings.stale_after_seconds)
        for name in {self.registry.active, *self.registry.bundles}:
            self.registry.get(name).prepare(view)
        self.orchestration.observe(snapshot)
        if previous is None and self.picker is not None and not self._stopping:
            # Before the first state there is nothing to pick from.
            self._picker_becoming_ready = asyncio.ensure_future(self.picker.set_ready(True))
        return view

    def _gauges(self) -> ServerGauges:
        return ServerGauges(
            state_age_seconds=lambda: self.store.age_seconds(),
            pending_picks=lambda: math.nan if self.store.held is None else self.store.held.ledger.pending,
            in_flight=lambda: self.logic.in_flight + self.scaling.in_flight,
            stale_endpoints=self._stale_endpoints,
            proxied_in_flight=lambda: math.nan if self.picker is None else self.picker.picker.in_flight,
        )

    def _stale_endpoints(self) -> float:
        held = self.store.held
        return math.nan if held is None else held.view.table.stale_count(time.monotonic())

    def _listen_for_envoy(self, spans: ProblemSpans) -> PickerServer:
        # Imported late: without Envoy nobody waits for its protos to load.
        from policy_server.envoy.picker import EndpointPicker
        from policy_server.envoy.picker_server import PickerServer

        settings = self.settings
        picker = EndpointPicker(
            self.logic,
            self.store,
            self.metrics,
            maximum_endpoints=settings.envoy_max_endpoints,
            maximum_in_flight=settings.envoy_max_in_flight,
            saturated_from=settings.envoy_saturation,
        )
        return PickerServer(settings, picker, self.metrics, spans)

    async def _start_extender(self, port: int, observer: GuardObserver) -> None:
        # Here, because the HTTP server costs start-up time and memory, and most servers do without.
        from policy_server.kubernetes.extender.start import extender_server, extender_tls

        self._extender = extender_server(
            self.settings,
            snapshot=lambda: None if self.store.held is None else self.store.held.snapshot,
            ready=lambda: self._health.ready,
            metrics=self.metrics,
            faults=observer,
        )
        tls = extender_tls(self.settings)
        self.extender_url = await self._extender.start(self.settings.extender_host, port, tls)

    def _start_source(self, source: StateSource) -> None:
        loop = asyncio.get_running_loop()

        def publish(snapshot: Snapshot) -> None:
            if not self._source_stopped.is_set():
                loop.call_soon_threadsafe(self._take_in, snapshot)

        def run() -> None:
            try:
                source.run(publish, self._source_stopped)
            except Exception:
                _LOGGER.exception(
                    "state source %s failed; the state ages from now on", self.settings.state_source
                )

        threading.Thread(target=run, name="state source", daemon=True).start()

    def _take_in(self, snapshot: Snapshot) -> None:
        now_seconds = time.monotonic()
        sampled_at = snapshot.sampled_at_seconds
        self.store.replace(
            snapshot.topology,
            snapshot.load,
            age_seconds=snapshot.age_seconds(now_seconds),
            sample_age_seconds=None if sampled_at is None else now_seconds - sampled_at,
        )
        if not self._health.ready and not self._stopping:
            self._becoming_ready = asyncio.ensure_future(self._health.set_ready(True))


def _load_policies(settings: Settings, observer: GuardObserver) -> PolicyRegistry:
    registry = PolicyRegistry(
        settings.models,
        active=settings.policy or settings.fallback,
        fallback=settings.fallback,
        settings=GuardSettings(
            maximum_state_age_seconds=settings.stale_after_seconds,
            budget_seconds=settings.model_budget_seconds,
        ),
        observer=observer,
    )
    if settings.policy is None and registry.bundles:
        registry.set_active(next(iter(registry.bundles)))
    return registry


def _load_orchestration_policies(settings: Settings, observer: GuardObserver) -> OrchestrationRegistry:
    registry = OrchestrationRegistry(
        settings.models,
        active=settings.orchestration_policy or settings.orchestration_fallback,
        fallback=settings.orchestration_fallback,
        settings=OrchestrationGuardSettings(
            maximum_state_age_seconds=settings.orchestration_stale_after_seconds,
            budget_seconds=settings.orchestration_budget_seconds,
        ),
        observer=observer,
    )
    if settings.orchestration_policy is None and registry.bundles:
        registry.set_active(next(iter(registry.bundles)))
    return registry


def _orchestration_limits(settings: Settings) -> OrchestrationLimits:
    return OrchestrationLimits(
        nodes=settings.max_orchestration_nodes,
        in_flight=settings.max_orchestrations_in_flight,
        frame_seconds=settings.frame_seconds,
    )


def _limits(settings: Settings) -> DispatchLimits:
    return DispatchLimits(
        inline_candidates=settings.max_inline_candidates,
        subset_endpoints=settings.max_subset_endpoints,
        batch_requests=settings.max_batch_requests,
        in_flight=settings.max_in_flight,
        retry_after_milliseconds=settings.retry_pushback_milliseconds,
    )


def _load_scaling_policies(settings: Settings, observer: GuardObserver) -> ScalingRegistry:
    return ScalingRegistry(
        settings.models,
        active=settings.scaling_policy,
        fallback=settings.scaling_fallback,
        settings=GuardSettings(budget_seconds=settings.model_budget_seconds),
        observer=observer,
    )


def _scaling_limits(settings: Settings) -> ScalingLimits:
    return ScalingLimits(
        containers=settings.max_scaling_containers,
        stale_after_seconds=settings.scaling_stale_after_seconds,
        economy=settings.scaling_economy,
    )
