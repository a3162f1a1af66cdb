"""Writes the ``.proto`` files beside it from the descriptors that an Envoy binary carries.

    python protos/vendor/extract.py .venv/lib/python3.11/site-packages/envoy/_bin/envoy

Only messages that the two services reach are written, each of them whole: what is on the wire is what the binary
reads and writes. Annotations (validation, documentation status) are left out, and so are their imports.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from google.protobuf.message import DecodeError

SERVICES = ("envoy/service/ext_proc/v3/external_processor.proto", "envoy/service/auth/v3/external_auth.proto")
HERE = Path(__file__).resolve().parent

_ANNOTATIONS = re.compile(r"^(envoy/annotations|udpa/annotations|xds/annotations|validate)/")
_TYPES = {
    number: name.removeprefix("TYPE_").lower()
    for name, number in FieldDescriptorProto.Type.items()
    if name not in {"TYPE_MESSAGE", "TYPE_ENUM", "TYPE_GROUP"}
}
_FIELDS_OF_A_FILE = {field.number for field in FileDescriptorProto.DESCRIPTOR.fields}
_LENGTH_DELIMITED, _VARINT = 2, 0


def descriptor_in(binary: bytes, name: str) -> FileDescriptorProto:
    """The serialized descriptor of the file ``name``, which starts with that name.

    Raises:
        SystemExit: the binary has none.
    """
    start_of_file = b"\n" + bytes([len(name)]) + name.encode()
    for match in re.finditer(re.escape(start_of_file), binary):
        try:
            found = FileDescriptorProto.FromString(binary[match.start() : _end(binary, match.start())])
        except DecodeError:
            continue
        if found.package:
            return found
    raise SystemExit(f"{name}: no descriptor in the binary; is it an Envoy with full protos?")


def _end(binary: bytes, start: int) -> int:
    """Where the fields of a file descriptor end that starts at ``start``."""
    position, first = start, True
    while True:
        tag, after = _varint(binary, position)
        field, wire_type = tag >> 3, tag & 7
        if field not in _FIELDS_OF_A_FILE or (field == 1 and not first):
            return position
        if wire_type == _LENGTH_DELIMITED:
            length, after = _varint(binary, after)
            after += length
        elif wire_type == _VARINT:
            _, after = _varint(binary, after)
        else:
            return position
        position, first = after, False


def _varint(binary: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = binary[position]
        position += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, position


def closure(binary: bytes) -> dict[str, FileDescriptorProto]:
    """The files of the services and of what they import, annotations and Google's well-known types left out."""
    files: dict[str, FileDescriptorProto] = {}
    waiting = list(SERVICES)
    while waiting:
        name = waiting.pop()
        if name in files or _ANNOTATIONS.match(name) or name.startswith("google/protobuf/"):
            continue
        files[name] = descriptor_in(binary, name)
        waiting.extend(files[name].dependency)
    return files


def reachable(files: dict[str, FileDescriptorProto]) -> set[str]:
    """Full names of the top-level messages and enums that the services need."""
    messages = {
        f".{file.package}.{message.name}": message for file in files.values() for message in file.message_type
    }
    waiting = [
        name
        for service_file in SERVICES
        for service in files[service_file].service
        for method in service.method
        for name in (method.input_type, method.output_type)
    ]
    found: set[str] = set()
    while waiting:
        name = waiting.pop()
        while name not in messages and "." in name[1:] and not _is_enum(files, name):
            name = name.rpartition(".")[0]
        if name in found:
            continue
        found.add(name)
        if name in messages:
            waiting.extend(_references(messages[name]))
    return found


def _is_enum(files: dict[str, FileDescriptorProto], name: str) -> bool:
    return any(name == f".{file.package}.{enum.name}" for file in files.values() for enum in file.enum_type)


def _references(message: DescriptorProto) -> Iterator[str]:
    for field in message.field:
        if field.type_name and not field.type_name.startswith(".google.protobuf."):
            yield field.type_name
    for nested in message.nested_type:
        yield from _references(nested)


def render(file: FileDescriptorProto, kept: set[str], files: dict[str, FileDescriptorProto]) -> str:
    """The text of one file."""
    messages = [m for m in file.message_type if f".{file.package}.{m.name}" in kept]
    enums = [e for e in file.enum_type if f".{file.package}.{e.name}" in kept]
    used = {name for message in messages for name in _all_types(message)}
    for service in file.service:
        used |= {name for method in service.method for name in (method.input_type, method.output_type)}
    lines = ['syntax = "proto3";', "", f"package {file.package};", ""]
    imports = [name for name in file.dependency if _provides_any(name, used, files)]
    lines += [f'import "{name}";' for name in imports] + [""] * bool(imports)
    for service in file.service:
        lines.append(f"service {service.name} {{")
        for method in service.method:
            request = "stream " * method.client_streaming + method.input_type
            response = "stream " * method.server_streaming + method.output_type
            lines.append(f"  rpc {method.name}({request}) returns ({response});")
        lines += ["}", ""]
    for enum in enums:
        lines += [*_enum(enum, ""), ""]
    for message in messages:
        lines += [*_message(message, ""), ""]
    return "\n".join(lines).rstrip() + "\n"


def _all_types(message: DescriptorProto) -> Iterator[str]:
    for field in message.field:
        if field.type_name:
            yield field.type_name
    for nested in message.nested_type:
        yield from _all_types(nested)


def _provides_any(name: str, used: set[str], files: dict[str, FileDescriptorProto]) -> bool:
    if name in files:
        file = files[name]
        defined = [f".{file.package}.{item.name}" for item in (*file.message_type, *file.enum_type)]
        return any(
            type_name == one or type_name.startswith(f"{one}.") for one in defined for type_name in used
        )
    if not name.startswith("google/protobuf/"):
        return False
    stem = Path(name).stem
    well_known = {
        "struct": ("Struct", "Value", "ListValue"),
        "wrappers": ("BoolValue", "UInt32Value", "UInt64Value"),
    }
    defined = [f".google.protobuf.{one}" for one in well_known.get(stem, (stem.title(),))]
    return any(one in used for one in defined)


def _message(message: DescriptorProto, indent: str) -> Iterator[str]:
    yield f"{indent}message {message.name} {{"
    inner = indent + "  "
    yield from _reserved(message, inner)
    for enum in message.enum_type:
        yield from _enum(enum, inner)
    maps = {}
    for nested in message.nested_type:
        if nested.options.map_entry:
            maps[nested.name] = nested
        else:
            yield from _message(nested, inner)
    written: set[int] = set()
    for field in message.field:
        if not field.HasField("oneof_index") or field.proto3_optional:
            yield inner + _field(field, maps)
        elif field.oneof_index not in written:
            written.add(field.oneof_index)
            yield f"{inner}oneof {message.oneof_decl[field.oneof_index].name} {{"
            for member in message.field:
                if member.HasField("oneof_index") and member.oneof_index == field.oneof_index:
                    yield f"{inner}  {_field(member, maps)}"
            yield f"{inner}}}"
    yield f"{indent}}}"


def _field(field: FieldDescriptorProto, maps: dict[str, DescriptorProto]) -> str:
    kind = field.type_name or _TYPES[field.type]
    entry = maps.get(field.type_name.rpartition(".")[2])
    if entry is not None:
        key, value = (one.type_name or _TYPES[one.type] for one in entry.field)
        kind = f"map<{key}, {value}>"
    elif field.label == FieldDescriptorProto.LABEL_REPEATED:
        kind = f"repeated {kind}"
    elif field.proto3_optional:
        kind = f"optional {kind}"
    deprecated = " [deprecated = true]" if field.options.deprecated else ""
    return f"{kind} {field.name} = {field.number}{deprecated};"


def _enum(enum: EnumDescriptorProto, indent: str) -> Iterator[str]:
    yield f"{indent}enum {enum.name} {{"
    for value in enum.value:
        deprecated = " [deprecated = true]" if value.options.deprecated else ""
        yield f"{indent}  {value.name} = {value.number}{deprecated};"
    yield f"{indent}}}"


def _reserved(message: DescriptorProto, indent: str) -> Iterator[str]:
    for reserved in message.reserved_range:
        last = reserved.end - 1
        yield f"{indent}reserved {reserved.start}{'' if last == reserved.start else f' to {last}'};"
    for name in message.reserved_name:
        yield f'{indent}reserved "{name}";'


def main() -> None:
    """Writes the files."""
    if len(sys.argv) != 2:
        raise SystemExit(f"usage: {sys.argv[0]} ENVOY_BINARY")
    files = closure(Path(sys.argv[1]).read_bytes())
    kept = reachable(files)
    for name, file in files.items():
        if any(f".{file.package}.{item.name}" in kept for item in (*file.message_type, *file.enum_type)):
            target = HERE / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(render(file, kept, files))


if __name__ == "__main__":
    main()
