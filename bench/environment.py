"""What a figure was measured on."""

from __future__ import annotations

import math
import os
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from bench.load import h2load
from policy_server.runtime.cpu_budget import read_cpu_budget

_PACKAGES = ("policy-server", "grpcio", "protobuf", "uvloop", "onnxruntime", "numpy", "aiohttp", "msgspec")


@dataclass(frozen=True)
class Environment:
    """Hardware, limits and versions.

    Attributes:
        cpu_model: As the kernel names it.
        logical_cores: Of the machine.
        usable_cores: That this process may run on.
        cpu_quota_cores: Limit of the control group; None: no limit.
        load_average_1_minute: When the run began; well above zero means that somebody else was busy.
        system: Kernel name and release.
        versions: Of Python, h2load (None: not installed) and the packages that matter.
    """

    cpu_model: str
    logical_cores: int
    usable_cores: int
    cpu_quota_cores: float | None
    load_average_1_minute: float
    system: str
    versions: dict[str, str | None]


def describe_environment() -> Environment:
    """Reads the environment of this process."""
    budget = read_cpu_budget()
    versions: dict[str, str | None] = {"python": platform.python_version(), "h2load": h2load.version()}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = None
    return Environment(
        cpu_model=_cpu_model(),
        logical_cores=os.cpu_count() or 0,
        usable_cores=budget.affinity,
        cpu_quota_cores=None if math.isinf(budget.quota) else budget.quota,
        load_average_1_minute=round(os.getloadavg()[0], 2),
        system=f"{platform.system()} {platform.release()}",
        versions=versions,
    )


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
