"""The few fields of a serialised ONNX ModelProto that ONNX Runtime does not report."""

from __future__ import annotations

from collections.abc import Iterator

_OPSET_IMPORT = 8
_DOMAIN = 1
_VERSION = 2
_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5


def opset_version(model: bytes) -> int:
    """Version of the standard operator set (domain ``""`` or ``ai.onnx``) a model is written in.

    Raises:
        ValueError: not a ModelProto, or one that imports no standard operator set.
    """
    for number, value in _fields(model):
        if number == _OPSET_IMPORT and isinstance(value, bytes):
            entry = dict(_fields(value))
            version = entry.get(_VERSION)
            if entry.get(_DOMAIN, b"") in (b"", b"ai.onnx") and isinstance(version, int):
                return version
    raise ValueError("no standard operator set among opset_import")


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Field numbers and raw values, by the Protocol Buffers wire format."""
    position = 0
    while position < len(message):
        tag, position = _varint(message, position)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == _VARINT:
            value, position = _varint(message, position)
            yield number, value
            continue
        if wire_type == _LENGTH_DELIMITED:
            length, position = _varint(message, position)
        elif wire_type in (_FIXED64, _FIXED32):
            length = 8 if wire_type == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {wire_type} at byte {position}: not a serialised ModelProto")
        if position + length > len(message):
            raise ValueError(f"{length} bytes announced at byte {position}: truncated ModelProto")
        yield number, message[position : position + length]
        position += length


def _varint(message: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if position >= len(message) or shift > 63:
            raise ValueError(f"malformed number at byte {position}: not a serialised ModelProto")
        byte = message[position]
        value |= (byte & 0x7F) << shift
        position += 1
        if byte < 0x80:
            return value, position
        shift += 7
