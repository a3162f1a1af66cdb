"""A real Envoy between a load generator, HTTP back ends and the endpoint picker."""
