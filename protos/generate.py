"""Generates ``policy_server/proto`` from ``protos/``; with ``--check`` reports drift instead of writing.

The generated modules import each other below ``policy_server.proto``, so that the package never collides
with another package called ``policy``, ``envoy`` or ``google.rpc``. What is vendored (``protos/vendor``) is moreover
described in a descriptor pool of its own: another package of the process may hold other versions of the same files.
"""

from __future__ import annotations

import argparse
import filecmp
import re
import shutil
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

PROTOS = Path(__file__).resolve().parent

VENDORED = PROTOS / "vendor"

TARGET = PROTOS.parent / "policy_server" / "proto"

VENDORED_PACKAGES = ("envoy", "google")
PACKAGES = ("policy", "envoy", "google.rpc")


def generate(target: Path) -> None:
    """Writes message, stub and type modules of every proto below ``target``."""
    own = sorted(path for path in PROTOS.rglob("*.proto") if not path.is_relative_to(VENDORED))
    _compile(PROTOS, own, target)
    _compile(VENDORED, sorted(VENDORED.rglob("*.proto")), target)
    for module in (*target.rglob("*.py"), *target.rglob("*.pyi")):
        text = _with_moved_imports(module.read_text())
        if module.relative_to(target).parts[0] in VENDORED_PACKAGES:
            text = _with_vendored_pool(text)
        module.write_text(text)
    for folder in (target, *(path for path in target.rglob("*") if path.is_dir())):
        (folder / "__init__.py").write_text('"""Generated from protos/; do not edit."""\n')


def _compile(root: Path, files: list[Path], target: Path) -> None:
    include = Path(protoc.__file__).parent / "_proto"
    plugins = Path(sys.executable).parent
    arguments = [
        "protoc",
        f"--plugin=protoc-gen-mypy={plugins / 'protoc-gen-mypy'}",
        f"--plugin=protoc-gen-mypy_grpc={plugins / 'protoc-gen-mypy_grpc'}",
        f"--proto_path={root}",
        f"--proto_path={include}",
        f"--python_out={target}",
        f"--grpc_python_out={target}",
        f"--mypy_out=quiet:{target}",
        f"--mypy_grpc_out=quiet:{target}",
        *(str(path.relative_to(root)) for path in files),
    ]
    if protoc.main(arguments) != 0:
        raise SystemExit("protoc failed; see the messages above")


def _with_moved_imports(text: str) -> str:
    for package in PACKAGES:
        moved, pattern = f"policy_server.proto.{package}", re.escape(package)
        text = re.sub(rf"^from {pattern}(?=[. ])", f"from {moved}", text, flags=re.MULTILINE)
        text = re.sub(rf"^import {pattern}\.", f"import {moved}.", text, flags=re.MULTILINE)
        text = re.sub(rf"(?<![\w./\"]){pattern}\.((?:\w+\.)*\w+_pb2)", rf"{moved}.\1", text)
    return text


def _with_vendored_pool(text: str) -> str:
    text = text.replace(
        "from google.protobuf import descriptor_pool as _descriptor_pool\n",
        "from policy_server.vendored_pool import VENDORED_POOL as _descriptor_pool\n",
    )
    return text.replace("_descriptor_pool.Default()", "_descriptor_pool")


def drift(expected: Path, actual: Path) -> list[str]:
    """Relative paths that differ between two folders, byte-compiled files left out."""
    names = {
        str(path.relative_to(root))
        for root in (expected, actual)
        for path in root.rglob("*")
        if path.is_file() and path.suffix in {".py", ".pyi"}
    }
    return sorted(
        name
        for name in names
        if not (expected / name).exists()
        or not (actual / name).exists()
        or not filecmp.cmp(expected / name, actual / name, shallow=False)
    )


def main() -> int:
    """Generates or checks; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="report drift instead of writing")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        fresh = Path(scratch)
        generate(fresh)
        if options.check:
            stale = drift(fresh, TARGET)
            for name in stale:
                sys.stderr.write(f"drift: policy_server/proto/{name}; run `make protos`\n")
            return 1 if stale else 0
        shutil.rmtree(TARGET, ignore_errors=True)
        shutil.copytree(fresh, TARGET)
    return 0


if __name__ == "__main__":
    sys.exit(main())
