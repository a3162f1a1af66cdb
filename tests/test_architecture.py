"""The rules of the house that no type checker sees."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

OFFLINE = (
    "torch",
    "numba",
    "scipy",
    "gymnasium",
    "pettingzoo",
    "matplotlib",
    "tensorboard",
    "onnx",
    "psutil",
)
"""Packages that the serving-only installation lacks."""

FORBIDDEN = {
    # Firmament, an optional extra, imports scipy when it is made.
    "policy_server": (*(package for package in OFFLINE if package != "scipy"), "training", "bench", "exported_models"),
    "policy_server/cluster": ("policy_server.features", "policy_server.policies", "policy_server.runtime",
                              "policy_server.api", "policy_server.proto", "policy_server.telemetry", "grpc"),
    "policy_server/features": ("policy_server.policies", "policy_server.runtime", "policy_server.api",
                               "policy_server.proto", "policy_server.telemetry", "grpc"),
    "policy_server/policies": ("policy_server.api", "policy_server.kubernetes", "policy_server.proto", "grpc"),
    "policy_server/client": ("policy_server.policies", "policy_server.features", "policy_server.cluster",
                             "policy_server.runtime", "policy_server.api", "policy_server.server"),
    "policy_server/runtime": ("policy_server.api", "policy_server.proto", "grpc"),
    "policy_server/api": ("policy_server.envoy", "policy_server.vendored_pool"),
    "policy_server/kubernetes": ("policy_server.api", "policy_server.proto", "policy_server.server", "grpc"),
    "training": ("bench", "policy_server.api", "policy_server.proto", "policy_server.server", "grpc"),
}  # fmt: skip

SIMULATING = {
    "bench/demo.py",
    "bench/demo_command.py",
    "bench/orchestration_demo.py",
    "bench/orchestration_demo_command.py",
    "bench/scaling_demo.py",
    "bench/scaling_demo_command.py",
}
"""The only modules of bench that may use training: they need a cluster to ask questions about."""


def imports_of(module: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno}: imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def forbidden_imports(modules: list[Path], packages: tuple[str, ...]) -> list[str]:
    assert modules
    return [
        f"{module.relative_to(ROOT)} imports {name}"
        for module in modules
        for name in imports_of(module)
        for package in packages
        if name == package or name.startswith(f"{package}.")
    ]


@pytest.mark.parametrize("folder", FORBIDDEN)
def test_arrows_point_one_way(folder: str) -> None:
    assert not forbidden_imports(list((ROOT / folder).rglob("*.py")), FORBIDDEN[folder])


def test_only_the_demo_needs_training() -> None:
    modules = [
        path for path in (ROOT / "bench").rglob("*.py") if str(path.relative_to(ROOT)) not in SIMULATING
    ]
    assert not forbidden_imports(modules, ("training", "torch", "numba"))


def test_the_rules_notice_an_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    module = tmp_path / "module.py"
    module.write_text("def late() -> None:\n    from policy_server import api\n\n    import torch.nn\n")
    found = forbidden_imports([module], ("policy_server.api", "torch", "training"))
    assert found == ["module.py imports policy_server.api", "module.py imports torch.nn"]


def stacked_decorators(source: str) -> list[str]:
    """Functions and classes with the same decorator twice, or with two that each make a descriptor.

    Python 3.13 no longer lets classmethod wrap another descriptor: such a method is not callable there.
    """
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names = [ast.unparse(decorator) for decorator in node.decorator_list]
            binding = {"classmethod", "staticmethod", "property"} & set(names)
            if len(set(names)) < len(names) or len(binding) > 1:
                found.append(f"{node.name}: {', '.join(names)}")
    return found


def test_no_decorator_is_stacked_on_itself() -> None:
    folders = ("policy_server", "training", "bench", "tests")
    modules = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    assert len(modules) > 100
    found = [
        f"{path.relative_to(ROOT)}: {method}"
        for path in modules
        for method in stacked_decorators(path.read_text())
    ]
    assert not found


@pytest.mark.parametrize(
    ("decorators", "count"),
    [
        (["classmethod"], 0),
        (["classmethod", "classmethod"], 1),
        (["classmethod", "property"], 1),
        (["staticmethod", "staticmethod"], 1),
        (["p('a', [1])", "p('b', [1])"], 0),
    ],
)
def test_the_rule_notices_stacked_decorators(decorators: list[str], count: int) -> None:
    lines = [*(f"    @{decorator}" for decorator in decorators), "    def of(cls): ..."]
    assert len(stacked_decorators("\n".join(["class Graph:", *lines]))) == count


def in_a_process_of_its_own(program: str) -> None:
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert answer.returncode == 0, answer.stderr


def test_no_module_of_the_server_loads_training_packages_or_starts_a_thread() -> None:
    in_a_process_of_its_own(
        "import importlib, pkgutil, sys, threading\n"
        "import policy_server\n"
        "names = [m.name for m in pkgutil.walk_packages(policy_server.__path__, 'policy_server.')]\n"
        "assert len(names) > 50, names\n"
        "for name in names:\n"
        "    importlib.import_module(name)\n"
        "loaded = {name.split('.')[0] for name in sys.modules}\n"
        f"bad = loaded & {{*{OFFLINE!r}, 'training', 'bench'}}\n"
        "assert not bad, bad\n"
        "assert threading.active_count() == 1, threading.enumerate()\n"
    )


def test_command_lines_answer_without_loading_what_only_some_commands_need() -> None:
    in_a_process_of_its_own(
        "import sys\n"
        "import policy_server.cli, bench.cli, training.simulator.presets\n"
        "bad = {name.split('.')[0] for name in sys.modules} & {'torch', 'numba', 'matplotlib', 'onnxruntime', 'grpc'}\n"
        "assert not bad, bad\n"
    )


def test_nothing_names_a_path_of_one_machine() -> None:
    answer = subprocess.run(["git", "ls-files", "-z"], capture_output=True, text=True, cwd=ROOT, check=False)
    tracked = answer.stdout.split("\0")[:-1]
    if not tracked:
        pytest.skip("not a git checkout")
    suspicious = [f"/{folder}/" for folder in ("work", "root", "home", "tmp", "opt")]
    found = [
        f"{name}: {text}"
        for name in tracked
        if (path := ROOT / name).suffix
        in {".py", ".md", ".toml", ".txt", ".json", ".proto", ".yaml", ".onnx", ""}
        and path.is_file()
        for text in suspicious
        if text in path.read_text(errors="ignore")
    ]
    assert not found
