"""The subset of endpoints that a data plane allows for a request.

Data planes send it as a list of addresses, as one string with commas, or as a list of such strings. All are read the
same. A hint that is present but lists nothing, or is of another type, allows nothing: an answer from outside the list
is worse than none.
"""

from __future__ import annotations

from typing import Any

from policy_server.envoy.addresses import listed
from policy_server.envoy.names import SUBSET_KEY, SUBSET_NAMESPACE


def subset_of(metadata: Any) -> list[str] | None:
    """The addresses of the hint in an ``envoy.config.core.v3.Metadata``; None where there is no hint."""
    namespaces = metadata.filter_metadata
    if SUBSET_NAMESPACE not in namespaces:
        return None
    hint = namespaces[SUBSET_NAMESPACE].fields
    if SUBSET_KEY not in hint:
        return None
    value = hint[SUBSET_KEY]
    match value.WhichOneof("kind"):
        case "string_value":
            texts = [value.string_value]
        case "list_value":
            texts = [item.string_value for item in value.list_value.values]
        case _:
            texts = []
    return [address for text in texts for address in listed(text)]
