"""The descriptor pool of the vendored protos.

The protobuf runtime keeps one description per file name and refuses a second that differs. Other packages, such as
``xds-protos``, bring descriptions of the same files, of another version and with annotations. In a pool of its own
ours meets none of them. The price: a ``google.protobuf.Struct`` of a vendored message is another class than that of
``google.protobuf.struct_pb2``; make it from the field (``message.field.update(...)``) or by :func:`message_class`.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import (
    any_pb2,
    descriptor_pool,
    duration_pb2,
    message_factory,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)

VENDORED_POOL = descriptor_pool.DescriptorPool()

for _module in (any_pb2, duration_pb2, struct_pb2, timestamp_pb2, wrappers_pb2):
    VENDORED_POOL.AddSerializedFile(_module.DESCRIPTOR.serialized_pb)


def message_class(full_name: str) -> Any:
    """The class of a message of the pool, such as ``google.protobuf.Struct``."""
    return message_factory.GetMessageClass(VENDORED_POOL.FindMessageTypeByName(full_name))
