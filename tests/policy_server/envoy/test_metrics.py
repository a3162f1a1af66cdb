"""What Prometheus is shown of the picker."""

from __future__ import annotations

from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from tests.support.ext_proc import data_plane, request_headers, response_headers
from tests.support.serving import equal_endpoints


async def test_outcomes_refusals_and_requests_in_flight() -> None:
    async with data_plane(equal_endpoints(3), metrics_port=0) as plane:
        streams, _ = await plane.picks_in_flight(2)
        only = ["10.0.0.1:8080"]
        await plane.exchange(request_headers(subset=only), response_headers(served=only[0]))
        await plane.exchange(request_headers(subset=only), response_headers(served="10.0.0.2:8080"))
        await plane.exchange(request_headers(), response_headers({":status": "500"}, served=only[0]))
        await plane.exchange(request_headers(), response_headers())
        await plane.pick()
        await plane.exchange(request_headers(subset=[]))
        await plane.exchange(request_headers({":authority": "stranger"}))
        port = plane.serving.server.telemetry.prometheus_port
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
            text = response.read().decode()
        for stream in streams:
            await stream.finish()
    shown = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "envoy" in sample.name or "stale" in sample.name
    }
    assert shown == {
        ("policy_envoy_in_flight",): 2,
        ("policy_envoy_outcomes_total", "served"): 1,
        ("policy_envoy_outcomes_total", "rerouted"): 1,
        ("policy_envoy_outcomes_total", "failed"): 1,
        ("policy_envoy_outcomes_total", "unattributed"): 1,
        ("policy_envoy_outcomes_total", "no_response"): 1,
        ("policy_envoy_refusals_total", "subset_empty"): 1,
        ("policy_envoy_refusals_total", "nothing_can_serve"): 1,
        ("policy_stale_endpoints",): 0,
    }
    assert 'rpc_method="envoy.service.ext_proc.v3.ExternalProcessor/Process"' in text
