"""How many CPUs this process may use, and the inference options that follow from it.

Inside a container neither ``os.cpu_count()`` nor ONNX Runtime's default sees the CPU quota: a pool sized from the
host's cores is throttled, and spinning threads burn the quota while idle.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import onnxruntime

CGROUP_ROOT = Path("/sys/fs/cgroup")
PROCESS_CGROUPS = Path("/proc/self/cgroup")
_LOG_ERRORS_ONLY = 3


@dataclass(frozen=True)
class CpuBudget:
    """CPUs of this process.

    Attributes:
        affinity: CPUs the scheduler may place it on.
        quota: CPU time per time its cgroup may use; infinite without a limit.
        quota_source: file the quota comes from, None without a limit.
    """

    affinity: int
    quota: float = math.inf
    quota_source: Path | None = None

    @property
    def count(self) -> int:
        """min(affinity, quota rounded up), at least 1."""
        if math.isinf(self.quota):
            return self.affinity
        return max(1, min(self.affinity, math.ceil(self.quota)))

    def describe(self) -> str:
        """One line for the start-up log."""
        quota = "no quota" if self.quota_source is None else f"quota {self.quota:g} from {self.quota_source}"
        return f"{self.count} CPU(s): affinity {self.affinity}, {quota}"


def read_cpu_budget(
    cgroup_root: Path = CGROUP_ROOT,
    process_cgroups: Path = PROCESS_CGROUPS,
    affinity: int | None = None,
) -> CpuBudget:
    """The budget of this process: the smallest quota on the way from its cgroup to the root.

    Args:
        cgroup_root: where the cgroup file system is mounted; version 2 is looked for first, then version 1.
        process_cgroups: the kernel's list of this process's cgroups; may be missing.
        affinity: instead of asking the scheduler.
    """
    if affinity is None:
        affinity = _affinity()
    limits = [
        (quota, source)
        for read, directories in (
            (_quota_v2, _directories(cgroup_root, _cgroup_path(process_cgroups, ""))),
            (_quota_v1, _directories_v1(cgroup_root, _cgroup_path(process_cgroups, "cpu"))),
        )
        for directory in directories
        for quota, source in read(directory)
    ]
    if not limits:
        return CpuBudget(affinity)
    quota, source = min(limits)
    return CpuBudget(affinity, quota, source)


def session_options(intra_op_threads: int = 1) -> onnxruntime.SessionOptions:
    """Options every model is run with.

    Thread counts are explicit, since a default of zero sizes the pool from the host and pins its threads. Memory
    patterns stay off: they are cached per combination of input shapes, and ours vary with every request.

    Args:
        intra_op_threads: threads inside one operator; 1 starts no pool at all.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = intra_op_threads
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.enable_mem_pattern = False
    options.log_severity_level = _LOG_ERRORS_ONLY
    for pool in ("intra_op", "inter_op"):
        options.add_session_config_entry(f"session.{pool}.allow_spinning", "0")
    return options


def _affinity() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cgroup_path(process_cgroups: Path, controller: str) -> PurePosixPath:
    """Path of the process in the hierarchy of a controller; the empty controller is the unified hierarchy."""
    for line in _text(process_cgroups).splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return PurePosixPath(path)
    return PurePosixPath("/")


def _directories(root: Path, path: PurePosixPath) -> Iterator[Path]:
    """The process's cgroup and its ancestors. Inside a cgroup namespace only the root exists."""
    for level in (path, *path.parents):
        yield root / level.relative_to("/")


def _directories_v1(root: Path, path: PurePosixPath) -> Iterator[Path]:
    for mount in ("cpu", "cpu,cpuacct"):
        yield from _directories(root / mount, path)


def _quota_v2(directory: Path) -> Iterator[tuple[float, Path]]:
    file = directory / "cpu.max"
    match _text(file).split():
        case [quota, period] if quota != "max":
            yield int(quota) / int(period), file


def _quota_v1(directory: Path) -> Iterator[tuple[float, Path]]:
    file = directory / "cpu.cfs_quota_us"
    quota, period = _text(file).strip(), _text(directory / "cpu.cfs_period_us").strip()
    if quota and period and int(quota) > 0:
        yield int(quota) / int(period), file


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
