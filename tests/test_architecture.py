"""The rules of the house that no type checker sees."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

FORBIDDEN = {
    "policy_server": ("torch", "numba", "gymnasium", "pettingzoo", "matplotlib", "training", "bench"),
    "policy_server/cluster": ("policy_server.features", "policy_server.policies", "policy_server.runtime",
                              "policy_server.api", "policy_server.proto", "grpc"),
    "policy_server/features": ("policy_server.policies", "policy_server.runtime", "policy_server.api", "grpc"),
    "policy_server/policies": ("policy_server.api", "policy_server.proto", "grpc"),
    "training": ("bench", "policy_server.api", "grpc"),
}  # fmt: skip


def imports_of(module: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


@pytest.mark.parametrize("folder", FORBIDDEN)
def test_arrows_point_one_way(folder: str) -> None:
    modules = list((ROOT / folder).rglob("*.py"))
    assert modules
    wrong = [
        f"{module.relative_to(ROOT)} imports {name}"
        for module in modules
        for name in imports_of(module)
        for forbidden in FORBIDDEN[folder]
        if name == forbidden or name.startswith(f"{forbidden}.")
    ]
    assert not wrong


def test_the_server_starts_without_training_packages() -> None:
    program = (
        "import sys, threading\n"
        "import policy_server.cli, policy_server.server\n"
        "loaded = {name.split('.')[0] for name in sys.modules}\n"
        "bad = loaded & {'torch', 'numba', 'training', 'bench', 'scipy', 'matplotlib'}\n"
        "assert not bad, bad\n"
        "assert threading.active_count() == 1, threading.enumerate()\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert answer.returncode == 0, answer.stderr


def test_nothing_names_a_path_of_one_machine() -> None:
    tracked = subprocess.run(
        ["git", "ls-files"], capture_output=True, text=True, cwd=ROOT, check=False
    ).stdout.split()
    if not tracked:
        pytest.skip("not a git checkout")
    suspicious = ("/" + "work/", "/" + "root/", "/" + "home/")
    found = [
        f"{name}: {text}"
        for name in tracked
        if (path := ROOT / name).suffix in {".py", ".md", ".toml", ".txt", ".json", ".proto", ""}
        and path.is_file()
        for text in suspicious
        if text in path.read_text(errors="ignore")
    ]
    assert not found
