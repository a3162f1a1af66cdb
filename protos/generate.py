"""Generates ``policy_server/proto`` from ``protos/``; with ``--check`` reports drift instead of writing.

The generated modules import each other below ``policy_server.proto``, so that the package never collides
with another package called ``policy``.
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

TARGET = PROTOS.parent / "policy_server" / "proto"


def generate(target: Path) -> None:
    """Writes message, stub and type modules of every proto below ``target``."""
    files = sorted(str(path.relative_to(PROTOS)) for path in PROTOS.rglob("*.proto"))
    include = Path(protoc.__file__).parent / "_proto"
    plugins = Path(sys.executable).parent
    arguments = [
        "protoc",
        f"--plugin=protoc-gen-mypy={plugins / 'protoc-gen-mypy'}",
        f"--plugin=protoc-gen-mypy_grpc={plugins / 'protoc-gen-mypy_grpc'}",
        f"--proto_path={PROTOS}",
        f"--proto_path={include}",
        f"--python_out={target}",
        f"--grpc_python_out={target}",
        f"--mypy_out=quiet:{target}",
        f"--mypy_grpc_out=quiet:{target}",
        *files,
    ]
    if protoc.main(arguments) != 0:
        raise SystemExit("protoc failed; see the messages above")
    for module in (*target.rglob("*.py"), *target.rglob("*.pyi")):
        text = module.read_text()
        text = re.sub(r"^from policy\b", "from policy_server.proto.policy", text, flags=re.MULTILINE)
        text = re.sub(
            r"^import policy\.(\S+) as", r"import policy_server.proto.policy.\1 as", text, flags=re.MULTILINE
        )
        text = re.sub(r"^import policy\.", "import policy_server.proto.policy.", text, flags=re.MULTILINE)
        text = re.sub(r"(?<![\w./\"])policy\.v1\.(\w+_pb2)", r"policy_server.proto.policy.v1.\1", text)
        module.write_text(text)
    for folder in (target, *(path for path in target.rglob("*") if path.is_dir())):
        (folder / "__init__.py").write_text('"""Generated from protos/; do not edit."""\n')


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
