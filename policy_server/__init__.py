"""Low-latency inference service for edge-cloud policies: dispatch, orchestration, vertical scaling."""
