"""Model bundles, sessions, registry, batching and CPU budget."""
