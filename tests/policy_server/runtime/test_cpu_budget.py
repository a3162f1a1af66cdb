import math
import os
import subprocess
import sys
from pathlib import Path

import onnxruntime
import pytest

from policy_server.runtime.cpu_budget import CpuBudget, read_cpu_budget, session_options
from tests.support.models import head_model

EIGHT = 8


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.mark.parametrize(
    ("cpu_max", "count"),
    [
        ("100000 100000", 1),
        ("250000 100000", 3),
        ("max 100000", EIGHT),
        ("50000 100000", 1),
        ("1600000 100000", EIGHT),
    ],
)
def test_version_2_quota_is_rounded_up_and_capped_by_affinity(
    tmp_path: Path, cpu_max: str, count: int
) -> None:
    write(tmp_path / "cpu.max", f"{cpu_max}\n")
    assert read_cpu_budget(tmp_path, tmp_path / "none", affinity=EIGHT).count == count


@pytest.mark.parametrize("mount", ["cpu", "cpu,cpuacct"])
@pytest.mark.parametrize(("quota", "count"), [("250000", 3), ("-1", EIGHT), ("100000", 1)])
def test_version_1_quota_is_the_fall_back(tmp_path: Path, mount: str, quota: str, count: int) -> None:
    write(tmp_path / mount / "cpu.cfs_quota_us", f"{quota}\n")
    write(tmp_path / mount / "cpu.cfs_period_us", "100000\n")
    assert read_cpu_budget(tmp_path, tmp_path / "none", affinity=EIGHT).count == count


def test_the_tightest_quota_from_own_cgroup_to_root_counts(tmp_path: Path) -> None:
    processes = tmp_path / "proc"
    write(processes, "0::/pods/pod-1/container\n")
    root = tmp_path / "cgroup"
    write(root / "pods/pod-1/container/cpu.max", "300000 100000\n")
    write(root / "pods/pod-1/cpu.max", "200000 100000\n")
    write(root / "pods/cpu.max", "400000 100000\n")
    write(root / "other/cpu.max", "100000 100000\n")
    budget = read_cpu_budget(root, processes, affinity=EIGHT)
    assert budget.count == 2
    assert budget.quota_source == root / "pods/pod-1/cpu.max"


def test_version_1_path_is_that_of_the_cpu_controller(tmp_path: Path) -> None:
    processes = tmp_path / "proc"
    write(processes, "5:memory:/elsewhere\n4:cpu,cpuacct:/box\n")
    root = tmp_path / "cgroup"
    write(root / "cpu,cpuacct/box/cpu.cfs_quota_us", "150000\n")
    write(root / "cpu,cpuacct/box/cpu.cfs_period_us", "100000\n")
    assert read_cpu_budget(root, processes, affinity=EIGHT).count == 2


def test_without_cgroups_affinity_counts(tmp_path: Path) -> None:
    assert read_cpu_budget(tmp_path / "none", tmp_path / "none", affinity=2) == CpuBudget(2)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this platform")
def test_affinity_is_that_of_the_process(tmp_path: Path) -> None:
    program = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))});"
        "from policy_server.runtime.cpu_budget import read_cpu_budget; print(read_cpu_budget().count)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "1"


def test_description_names_the_source(tmp_path: Path) -> None:
    write(tmp_path / "cpu.max", "250000 100000\n")
    budget = read_cpu_budget(tmp_path, tmp_path / "none", affinity=EIGHT)
    assert budget.describe() == f"3 CPU(s): affinity 8, quota 2.5 from {tmp_path}/cpu.max"
    assert CpuBudget(2, math.inf).describe() == "2 CPU(s): affinity 2, no quota"


def test_session_options_leave_nothing_to_the_host(capfd: pytest.CaptureFixture[str]) -> None:
    options = session_options(intra_op_threads=2)
    assert options.intra_op_num_threads == 2
    assert options.inter_op_num_threads == 1
    assert options.execution_mode == onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    for pool in ("intra_op", "inter_op"):
        assert options.get_session_config_entry(f"session.{pool}.allow_spinning") == "0"
    options.log_severity_level = 0
    onnxruntime.InferenceSession(head_model(), options, providers=["CPUExecutionProvider"])
    log = "".join(capfd.readouterr())
    assert "setaffinity" not in log
    assert "auto_set_affinity: 0" in log, "the log must be on for its silence to mean something"
