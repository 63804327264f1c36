"""What the scripts hand to torchrun and dlrm-train, and what they refuse; a Python that only prints stands in."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """An environment whose torchrun prints its arguments, a line each."""
    (tmp_path / "bin").mkdir()
    for name, body in (("dlrm-train", "exit 1"), ("python", "shift 2; printf '%s\\n' \"$@\"")):
        program = tmp_path / "bin" / name
        program.write_text(f"#!/bin/bash\n{body}\n")
        program.chmod(0o755)
    return tmp_path


def run(script: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a script with ``variables``, and none of those that it looks at besides."""
    clean = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
    return subprocess.run(
        ["bash", str(SCRIPTS / script), *arguments],
        env={**clean, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_local_starts_so_many_ranks_and_passes_everything_on(venv: Path) -> None:
    """Options before the first key=value go to torchrun, what comes after to dlrm-train, spaces and all."""
    done = run(
        "torchrun_local.sh", "--max-restarts=3", "data.path=a b", "tables.specs=[]", VENV=str(venv), RANKS="2"
    )
    assert done.stdout.splitlines() == [
        "--standalone",
        "--nproc-per-node=2",
        "--max-restarts=3",
        "--no-python",
        f"{venv}/bin/dlrm-train",
        "data.path=a b",
        "tables.specs=[]",
    ]


def test_multinode_static_numbers_the_machines_as_given(venv: Path) -> None:
    place = {"NNODES": "3", "NODE_RANK": "2", "MASTER_ADDR": "node0", "RANKS_PER_NODE": "4"}
    done = run("torchrun_multinode.sh", "data.path=x", VENV=str(venv), **place)
    assert done.stdout.split() == [
        *("--nnodes=3", "--nproc-per-node=4"),
        *("--node-rank=2", "--master-addr=node0", "--master-port=29500"),
        *("--no-python", f"{venv}/bin/dlrm-train", "data.path=x"),
    ]


def test_multinode_c10d_names_the_meeting_place(venv: Path) -> None:
    place = {
        "NNODES": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1234",
        "RANKS_PER_NODE": "1",
        "RUN_ID": "r",
    }
    done = run("torchrun_multinode.sh", "--rdzv=c10d", "data.path=x", VENV=str(venv), **place)
    given = done.stdout.split()
    assert given[2:5] == ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:1234", "--rdzv-id=r"]
    assert not any(option.startswith("--node-rank") for option in given)


def test_a_meeting_place_that_nobody_knows_is_refused(venv: Path) -> None:
    place = {"NNODES": "2", "MASTER_ADDR": "no-such-host.invalid", "RANKS_PER_NODE": "1"}
    done = run("torchrun_multinode.sh", "--rdzv=c10d", "data.path=x", VENV=str(venv), **place)
    assert done.returncode == 2
    assert "MASTER_ADDR=no-such-host.invalid: no address is known" in done.stderr


def test_multinode_tells_everything_that_is_wrong_at_once(venv: Path) -> None:
    done = run("torchrun_multinode.sh", "data.path=x", VENV=str(venv), MASTER_PORT="x", RANKS_PER_NODE="1")
    assert done.returncode == 2
    for name in ("NNODES", "MASTER_ADDR", "MASTER_PORT", "NODE_RANK"):
        assert name in done.stderr
    done = run(
        "torchrun_multinode.sh",
        "--rdzv=c10d",
        "data.path=x",
        VENV=str(venv),
        NNODES="2",
        NODE_RANK="2",
        MASTER_ADDR="a",
        RANKS_PER_NODE="1",
    )
    assert (done.returncode, done.stderr) == (
        2,
        "error: NODE_RANK=2: --rdzv=c10d numbers the machines itself, unset it\n",
    )


@pytest.mark.parametrize("script", ["torchrun_local.sh", "torchrun_multinode.sh"])
def test_split_options_and_other_environments_are_refused(venv: Path, tmp_path: Path, script: str) -> None:
    done = run(script, "--max-restarts", "3", VENV=str(venv), RANKS="1")
    assert (done.returncode, done.stderr) == (
        2,
        "error: --max-restarts: write an option of torchrun as --name=value\n",
    )
    done = run(script, "data.path=x", VENV=str(tmp_path / "nowhere"), RANKS="1")
    assert done.returncode == 2
    assert "nowhere/bin/dlrm-train is not there: type make setup" in done.stderr


@pytest.mark.parametrize("script", ["torchrun_local.sh", "torchrun_multinode.sh"])
def test_help_is_the_scripts_head_and_no_arguments_is_an_error(script: str) -> None:
    asked, bare = run(script, "--help"), run(script)
    assert (asked.returncode, bare.returncode) == (0, 2)
    assert asked.stdout.startswith("dlrm-train on")
    assert asked.stdout == bare.stdout


@pytest.fixture
def slurm(venv: Path) -> dict[str, str]:
    """The environment of a batch script on a node with 8 GPUs, whose srun prints what it is to start."""
    for name, body in (
        ("srun", "printf '%s\\n' \"$@\""),
        ("squeue", "echo RUNNING"),
        ("hostname", "echo node0"),
    ):
        program = venv / "bin" / name
        program.write_text(f"#!/bin/bash\n{body}\n")
        program.chmod(0o755)
    (venv / "bin/activate").write_text(f"PATH={venv}/bin:$PATH\n")
    numbers = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_GPUS_ON_NODE": "8"}
    return {**numbers, "SLURM_JOB_NAME": "job", "VENV": str(venv), "SLURM_CPUS_ON_NODE": "1"}


def test_a_job_without_cores_is_refused_naming_the_option(slurm: dict[str, str], tmp_path: Path) -> None:
    """Without --cpus-per-task Slurm gives a node's task one core, and sets no SLURM_CPUS_PER_TASK."""
    done = run("slurm/train.sbatch", f"output={tmp_path}/run", **slurm)
    assert done.returncode == 2
    assert "8 ranks on 1 core(s) of each node" in done.stderr
    assert "--cpus-per-task=96" in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_job_with_cores_hands_them_to_srun(slurm: dict[str, str], tmp_path: Path) -> None:
    done = run("slurm/train.sbatch", f"output={tmp_path}/run", **slurm, SLURM_CPUS_PER_TASK="96")
    assert done.returncode == 0, done.stderr
    given = done.stdout.splitlines()
    assert "--cpus-per-task=96" in given
    assert "--nproc-per-node=8" in given
    assert f"output={tmp_path}/run" in given


@pytest.mark.parametrize("job", ["1", "11999", "12000", "19999", "4294967295"])
def test_the_port_of_a_job_is_outside_linuxs_own_range(
    job: str, slurm: dict[str, str], tmp_path: Path
) -> None:
    """Those of outgoing connections begin with 32,768."""
    done = run(
        "slurm/train.sbatch",
        f"output={tmp_path}/run",
        **{**slurm, "SLURM_JOB_ID": job},
        SLURM_CPUS_PER_TASK="96",
    )
    (port,) = [line for line in done.stdout.splitlines() if line.startswith("--master-port=")]
    assert 20000 <= int(port.partition("=")[2]) < 32768


def test_a_job_without_gpus_may_have_one_core(slurm: dict[str, str], tmp_path: Path) -> None:
    del slurm["SLURM_GPUS_ON_NODE"]
    assert run("slurm/train.sbatch", f"output={tmp_path}/run", **slurm).returncode == 0


@pytest.mark.parametrize(("given", "seconds"), [({}, "300"), ({"SHUTDOWN_SECONDS": "900"}, "900")])
def test_torchrun_waits_for_a_last_checkpoint(given: dict[str, str], seconds: str, venv: Path) -> None:
    (venv / "bin" / "python").write_text('#!/bin/bash\necho "$TORCH_ELASTIC_SHUTDOWN_TIMEOUT"\n')
    done = run("torchrun_local.sh", "data.path=x", VENV=str(venv), RANKS="2", **given)
    assert done.stdout.split() == [seconds]


def test_ranks_are_bound_to_numa_nodes_where_there_are_several(venv: Path, tmp_path: Path) -> None:
    """Only with GPUs and numactl, and what is typed comes later, so it wins."""
    several = Path("/sys/devices/system/node/node1").exists()
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("numactl", "nvidia-smi"):
        (tools / name).write_text("#!/bin/bash\n")
        (tools / name).chmod(0o755)
    path = f"{tools}:{os.environ['PATH']}"
    done = run(
        "torchrun_local.sh", "--numa-binding=socket", "data.path=x", VENV=str(venv), RANKS="2", PATH=path
    )
    options = [line for line in done.stdout.splitlines() if line.startswith("--numa")]
    assert options == ["--numa-binding=node"] * several + ["--numa-binding=socket"]
