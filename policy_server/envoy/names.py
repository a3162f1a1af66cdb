"""Names of the Endpoint Picker Protocol 1.0 (Gateway API Inference Extension, proposal 004)."""

from __future__ import annotations

DESTINATION_NAMESPACE = "envoy.lb"
DESTINATION_ENDPOINT = "x-gateway-destination-endpoint"
SERVED_ENDPOINT = "x-gateway-destination-endpoint-served"
SUBSET_NAMESPACE = "envoy.lb.subset_hint"
SUBSET_KEY = "x-gateway-destination-endpoint-subset"
TEST_SELECTION_HEADER = "test-epp-endpoint-selection"
"""Of the conformance tests: the endpoints to choose from. Read only where a setting says so."""

UPSTREAM_ADDRESS = "upstream.address"
"""Envoy's attribute for who served."""
