"""The limits of control groups, of both versions, at every depth."""

from pathlib import Path

import pytest

from dlrm_app.machine import cpu_limits, memory_limits


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


@pytest.mark.parametrize(
    ("group", "files", "limits"),
    [
        # cgroup v2 on a Slurm node: the limit is of the job, above the step's own group; the top has none
        (
            "0::/system.slice/slurmstepd.scope/job_7/step_0",
            {"system.slice/slurmstepd.scope/job_7/memory.max": "4096\n", "system.slice/memory.max": "max\n"},
            [4096],
        ),
        ("0::/", {"memory.max": "8192\n"}, [8192]),  # a container
        (
            "5:cpu,cpuacct:/a\n4:memory:/slurm/job_7",  # cgroup v1
            {"memory/slurm/job_7/memory.limit_in_bytes": "4096\n", "memory/memory.limit_in_bytes": "8192\n"},
            [4096, 8192],
        ),
        ("4:memory:/", {"memory/memory.limit_in_bytes": f"{2**63 - 4096}\n"}, []),  # v1 without a limit
        ("0::/user.slice", {}, []),
    ],
)
def test_the_memory_that_a_job_or_container_allows_is_found(
    group: str, files: dict[str, str], limits: list[int], tmp_path: Path
) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(group + "\n")
    for name, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert memory_limits(tmp_path) == limits


def test_cpu_time_is_limited_by_any_group_above(tmp_path: Path) -> None:
    write(tmp_path / "proc/self/cgroup", "0::/pod/container")
    write(tmp_path / "sys/fs/cgroup/pod/container/cpu.max", "max 100000")
    write(tmp_path / "sys/fs/cgroup/pod/cpu.max", "250000 100000")
    assert cpu_limits(tmp_path) == [2.5]


def test_the_quota_of_cgroups_version_1_counts_too(tmp_path: Path) -> None:
    write(tmp_path / "proc/self/cgroup", "7:memory:/x\n4:cpu,cpuacct:/x")
    for name, value in (("cpu.cfs_quota_us", "300000"), ("cpu.cfs_period_us", "100000")):
        write(tmp_path / "sys/fs/cgroup/cpu,cpuacct/x" / name, value)
    assert cpu_limits(tmp_path) == [3]
    write(tmp_path / "sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us", "-1")
    assert cpu_limits(tmp_path) == []
