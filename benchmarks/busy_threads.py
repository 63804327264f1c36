"""Two threads and one beside other programs, by how long idle OpenMP threads spin (GOMP_SPINCOUNT, libgomp).

    python benchmarks/busy_threads.py --data DATASET --rounds 5 --busy 1

Several trainings stand still (SIGSTOP) while one goes on for some seconds, in random order, so that all meet the same
neighbours. Rates are medians over windows, of the steps that ended in each; cores that other programs took are of /proc/stat.
"""

import argparse
import os
import random
import shutil
import signal
import statistics
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

SPINS = ("10000", "1000", "300", "0")
BATCH = 2048


@dataclass
class Trainer:
    """A training that stands still but in its windows."""

    process: subprocess.Popen[bytes]
    log: Path
    rates: list[float] = field(default_factory=list)
    others: list[float] = field(default_factory=list)

    def window(self, seconds: float, busy: list[subprocess.Popen[bytes]]) -> None:
        begin, before, started = self.log.stat().st_size, self._others(busy), time.perf_counter()
        self.process.send_signal(signal.SIGCONT)
        time.sleep(seconds)
        self.process.send_signal(signal.SIGSTOP)
        took = time.perf_counter() - started
        self.others.append((self._others(busy) - before) / took)
        steps = self.log.read_bytes()[begin:].count(b'"event": "train"')
        self.rates.append(steps * BATCH / took)

    def _others(self, busy: list[subprocess.Popen[bytes]]) -> float:
        """Seconds of CPU time of all but ours."""
        fields = [int(text) for text in Path("/proc/stat").read_text().split("\n")[0].split()[1:]]
        ours = sum(cpu_seconds(process) for process in [self.process, *busy])
        return (sum(fields[:3]) + sum(fields[5:8])) / os.sysconf("SC_CLK_TCK") - ours


def cpu_seconds(process: subprocess.Popen[bytes]) -> float:
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def start(data: Path, folder: Path, threads: int, spin: str) -> Trainer:
    keys = [f"data.path={data}", "tables.embedding_dim=32", "trainer.epochs=1000000", "experiment=null"]
    keys += ["evaluation.table_health=false", "checkpoint.every_epoch=false", "report.enabled=false"]
    keys += ["trainer.log_every_steps=1", f"trainer.global_batch_size={BATCH}"]
    keys += [f"trainer.threads={threads}", f"output={folder}"]
    environment = {**os.environ, "GOMP_SPINCOUNT": spin}
    log = folder / "metrics.jsonl"
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(["dlrm-train", *keys], env=environment, stdout=quiet, stderr=quiet)
    while not log.exists() or log.read_bytes().count(b"\n") < 6:
        if process.poll() is not None:
            raise RuntimeError(f"dlrm-train {' '.join(keys)} ended")
        time.sleep(0.1)
    process.send_signal(signal.SIGSTOP)
    return Trainer(process, log)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--busy", type=int, default=1, help="programs that compute without end beside it")
    options = parser.parse_args()
    folder, busy, trainers = Path(tempfile.mkdtemp()), [], {}
    try:
        for threads, spin in [(1, SPINS[0]), *((2, spin) for spin in SPINS)]:
            trainers[threads, spin] = start(options.data, folder / f"{threads}-{spin}", threads, spin)
        busy = [subprocess.Popen(["python3", "-c", "while True: pass"]) for _ in range(options.busy)]
        for _ in range(options.rounds):
            for trainer in random.sample(list(trainers.values()), len(trainers)):
                trainer.window(options.seconds, busy)
    finally:
        for process in [*busy, *(trainer.process for trainer in trainers.values())]:
            process.kill()
        shutil.rmtree(folder, ignore_errors=True)
    for (threads, spin), trainer in trainers.items():
        rate, others = statistics.median(trainer.rates), statistics.median(trainer.others)
        print(f"{threads} threads, spin {spin:>5}: {rate:7,.0f} samples/s, others took {others:.2f} cores")


if __name__ == "__main__":
    main()
