"""A Slurm of its own in one folder: munged, slurmctld and two slurmd's, all on loopback, on free ports.

Needs root and Debian's slurm-wlm and munge (`make test-slurm` installs them); written for Slurm 22.05 and later.
"""

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from tests.commands import wait_until

NODES = ("n1", "n2")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol")

CONFIG = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
SlurmctldPort={port}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
StateSaveLocation={folder}/state
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdLogFile={folder}/slurmd.%n.log
SlurmdSpoolDir={folder}/spool.%n
# no cgroups, no accounting: nothing of this machine is touched
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
# a node that is gone is noticed within seconds, and is back once its daemon is
SlurmdTimeout=10
MessageTimeout=30
KillWait=15
UnkillableStepTimeout=30
InactiveLimit=0
MinJobAge=3600
ReturnToService=2
JobRequeue=1
SchedulerParameters=sched_interval=1,batch_sched_delay=0
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=60 State=UP OverSubscribe=NO
"""


def why_not() -> str | None:
    """Why no Slurm can be started here; None if one can."""
    if os.geteuid() != 0:
        return "Slurm's daemons need root"
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    return f"{', '.join(missing)} not installed (apt-get install slurm-wlm munge)" if missing else None


class Cluster:
    """Two nodes, n1 and n2; every method speaks to this cluster and no other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    @contextmanager
    def running(self) -> Iterator["Cluster"]:
        """Starts the daemons; at the end, however it comes, ends them and every process of every job."""
        with ExitStack() as stack:
            stack.callback(self._kill_what_is_left)
            stack.callback(self._stop_daemons)
            self._configure()
            munge = self.folder / "munge"
            files = [
                f"--{name}={munge / name}"
                for name in ("key-file", "socket", "pid-file", "log-file", "seed-file")
            ]
            self._start("munged", "munged", "--foreground", "--force", *files)
            wait_until(lambda: (munge / "socket").exists(), 20, "munged")
            self._start("slurmctld", "slurmctld", "-D")
            for node in NODES:
                self.start_node(node)
            wait_until(lambda: self.states() == ["idle", "idle"], 60, "the nodes to be idle")
            yield self

    def _configure(self) -> None:
        munge = self.folder / "munge"
        munge.mkdir(parents=True)
        key = munge / "key-file"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))
        (self.folder / "state").mkdir()
        host = socket.gethostname().split(".")[0]
        ports = free_ports(1 + len(NODES))
        lines = [
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2 State=UNKNOWN"
            for node, port in zip(NODES, ports[1:], strict=True)
        ]
        values = {"host": host, "folder": self.folder, "port": ports[0], "nodes": "\n".join(lines)}
        (self.folder / "slurm.conf").write_text(CONFIG.format(**values))

    def _start(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.out").open("ab") as out:
            self._daemons[name] = subprocess.Popen(
                command,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def start_node(self, node: str) -> None:
        """Starts the daemon of ``node``."""
        self._start(node, "slurmd", "-D", "-N", node)

    def kill_node(self, node: str) -> None:
        """``node`` loses its power: its daemon and everything of its jobs end at once, by kill -9."""
        daemon = self._daemons.pop(node)
        for pid in (daemon.pid, *self._processes_of(node)):
            send(pid, signal.SIGKILL)
        daemon.wait()

    def rank_of(self, node: str) -> int:
        """The process of the rank on ``node``."""
        (pid,) = [pid for pid in self._processes_of(node) if "\0RANK=" in read(pid, "environ")]
        return pid

    def task_of(self, number: str) -> int:
        """The process of task ``number`` of the only step."""
        (pid,) = [
            pid for pid in self._processes_of(None) if f"\0SLURM_PROCID={number}\0" in read(pid, "environ")
        ]
        return pid

    def _stop_daemons(self) -> None:
        for daemon in reversed(self._daemons.values()):
            daemon.terminate()
            try:
                daemon.wait(timeout=10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        self._daemons.clear()

    def _kill_what_is_left(self) -> None:
        for pid in self._processes_of(None):
            send(pid, signal.SIGKILL)

    def _processes_of(self, node: str | None) -> list[int]:
        """The processes of the jobs on ``node`` and the slurmstepd's above them; without ``node``, all that is left."""
        found = set()
        for pid in [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]:
            environment = read(pid, "environ").split("\0")
            if f"SLURM_CONF={self.environment['SLURM_CONF']}" not in environment:
                continue
            if node is None:
                found.add(pid)
            elif f"SLURMD_NODENAME={node}" in environment:
                found.update((pid, *step_daemons_above(pid)))
        return sorted(found - {os.getpid()})

    def ask(self, *command: str) -> str:
        """What one of Slurm's own commands prints."""
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, f"{command} ended with {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def submit(self, folder: Path, *arguments: str) -> int:
        """The number of the job that ``sbatch arguments`` makes in ``folder``."""
        done = subprocess.run(
            ["sbatch", "--parsable", *arguments],
            cwd=folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return int(done.stdout)

    def states(self) -> list[str]:
        """The state of each node."""
        done = subprocess.run(
            ["sinfo", "-h", "-N", "-o", "%T"],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout.split()

    def job(self, number: int) -> dict[str, str]:
        """What Slurm knows of a job."""
        words = self.ask("scontrol", "--oneliner", "show", "job", str(number)).split()
        return dict(word.partition("=")[::2] for word in words)


def step_daemons_above(pid: int) -> Iterator[int]:
    """The slurmstepd's among the ancestors of ``pid``."""
    while pid > 1:
        status = dict(line.partition(":")[::2] for line in read(pid, "status").splitlines())
        pid = int(status.get("PPid", "0"))
        if pid > 1 and read(pid, "comm").startswith("slurmstepd"):
            yield pid


def read(pid: int, name: str) -> str:
    """/proc/PID/name; empty when the process is gone."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def send(pid: int, number: signal.Signals) -> None:
    """Sends a signal, if the process is still there."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
