"""An endpoint picker for Envoy and the gateways built on it, on a port of its own.

Two services answer the same question by the same pipeline as the native API, from the same state:

- ``envoy.service.ext_proc.v3.ExternalProcessor``, by the Endpoint Picker Protocol 1.0 of the Gateway API Inference
  Extension. Picks by the request headers alone, whatever the body mode; bodies pass unchanged. A request counts as in
  flight from the pick until its stream ends, so the filter must send response headers (``response_header_mode: SEND``,
  which is what ``DEFAULT`` means): without them Envoy may end the stream as soon as the pick is made, and nobody tells
  who served. Without ``response_trailer_mode: SEND`` it ends the stream at the response headers, and a request whose
  response runs on counts no more. Who served is read from the metadata ``envoy.lb`` /
  ``x-gateway-destination-endpoint-served`` (that namespace must be among
  ``metadata_options.forwarding_namespaces.untyped``), else from the response attribute ``upstream.address``, else from
  the response header of that name.
- ``envoy.service.auth.v3.Authorization``, which sees no response: a request counts as in flight for as long as
  requests of its kind take, or until ``ReportOutcome`` tells its end.

The answer is the header ``x-gateway-destination-endpoint`` and, equal to it, the dynamic metadata ``envoy.lb`` /
``x-gateway-destination-endpoint``: addresses, best first, separated by commas. (Authorization puts its metadata below
``envoy.filters.http.ext_authz``, as Envoy does with all of them.)

``protos/vendor`` has the messages; ``policy-server serve --envoy`` serves.
"""
