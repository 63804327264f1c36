"""dlrm-train from disk beside facebookresearch/dlrm's dlrm_main.py, each a command of its own, in turn.

    git clone https://github.com/facebookresearch/dlrm
    python benchmarks/train.py --dlrm dlrm                 # the shapes of `small`, three rounds
    python benchmarks/train.py --dlrm dlrm --model kaggle --engines adagrad,dlrm_main
    python benchmarks/train.py --ranks 2 --batch 8192      # dlrm-train alone, on two ranks

Same tables, MLPs, batch size, threads and machine. dlrm-train reads Parquet and shuffles it; dlrm_main.py trains on
random batches in memory. Ids are uniform, as dlrm_main.py draws them. The models are in train_models.py, what had to be
put around dlrm_main.py in train_peers.py.

samples/s: from the end of step WARM_STEPS to the end of the last. Start: from the command to the end of the first
step, reckoned: step WARM_STEPS ends so much later, less the steps between at the later pace.
"""

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from train_models import DCN, KAGGLE, SPEED, TINY, Shapes

WARM_STEPS = 20
MODELS = {"small": SPEED, "kaggle": KAGGLE, "dcn": DCN, "tiny": TINY}
OURS = {
    "rowwise": ["optimizer=rowwise_adagrad"],
    "adagrad": ["optimizer=adagrad"],
    "adagrad_tf32": ["optimizer=adagrad", "trainer.tf32=true"],
    "adagrad_bf16": ["optimizer=adagrad", "trainer.precision=bf16"],
    "rowwise_bf16": ["optimizer=rowwise_adagrad", "trainer.precision=bf16", "trainer.compile=true"],
}
PEER = "dlrm_main"
"""dlrm_main.py with Adagrad; the one that it has beside SGD."""


@dataclass(frozen=True)
class Work:
    """What every engine is given. ``ranks``: of dlrm-train; ``dlrm``: a checkout of facebookresearch/dlrm."""

    shapes: Shapes
    batch: int
    steps: int
    ranks: int
    folder: Path
    dlrm: Path | None


@dataclass(frozen=True)
class Measured:
    """One run of an engine: samples/s, seconds from the command to its first step."""

    speed: float
    start: float


def our_command(work: Work, keys: Sequence[str]) -> list[str]:
    """dlrm-train from disk."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", f"{work.ranks}"]
    return [
        *(sys.executable, *(torchrun if work.ranks > 1 else []), "-m", "dlrm_app.cli", "train"),
        f"data.path={work.folder / 'dataset'}",
        *(f"tables={work.folder / 'tables.yaml'}", *work.shapes.settings()),
        *(f"trainer.global_batch_size={work.batch}", f"trainer.max_steps={work.steps}"),
        *("trainer.log_every_steps=10", f"output={work.folder / 'run'}", *keys),
    ]


def peer_command(work: Work) -> list[str]:
    shapes = work.shapes
    return [
        *(sys.executable, str(Path(__file__).with_name("train_peers.py"))),
        *(str(Path(str(work.dlrm)) / "torchrec_dlrm" / "dlrm_main.py"), str(work.folder)),
        *("--num_embeddings_per_feature", numbers(shapes.rows), "--embedding_dim", f"{shapes.dim}"),
        *("--dense_arch_layer_sizes", numbers(shapes.bottom)),
        *("--over_arch_layer_sizes", numbers(shapes.top)),
        *("--interaction_type", "dcn" if shapes.interaction == "dcn" else "original"),
        *("--batch_size", f"{work.batch}", "--limit_train_batches", f"{work.steps}"),
        *("--limit_val_batches", "1", "--limit_test_batches", "1"),
        *("--adagrad", "--learning_rate", "0.005"),
    ]


def numbers(values: Sequence[int]) -> str:
    return ",".join(map(str, values))


def step_ends(engine: str, work: Work) -> dict[int, float]:
    """Step → when it ended; of ours, when its line was logged."""
    if engine == PEER:
        times = json.loads((work.folder / "times.json").read_text())
        return dict(enumerate(times[: work.steps], start=1))
    events = map(json.loads, (work.folder / "run" / "metrics.jsonl").read_text().splitlines())
    return {event["step"]: event["time"] for event in events if event["event"] == "train"}


def peer_environment() -> dict[str, str]:
    """Of a trainer that torchrun would start."""
    with socket.create_server(("localhost", 0)) as server:
        port = server.getsockname()[1]
    ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    return {**os.environ, "MASTER_ADDR": "localhost", "MASTER_PORT": f"{port}", **ranks}


def measure(engine: str, work: Work) -> Measured:
    """Runs ``engine`` once; ends the program if it fails. What it saved is gone before the next one starts."""
    is_peer = engine == PEER
    command = peer_command(work) if is_peer else our_command(work, OURS[engine])
    environment = peer_environment() if is_peer else None  # None: this process's
    started = time.time()
    with (work.folder / "log").open("w+") as log:
        done = subprocess.run(
            command, env=environment, cwd=work.folder, stdout=log, stderr=subprocess.STDOUT, check=False
        )
        if done.returncode:
            log.seek(0)
            sys.exit(f"{engine} failed:\n{log.read()[-3000:]}")
    steps = step_ends(engine, work)
    shutil.rmtree(work.folder / "run", ignore_errors=True)
    os.sync()
    last = max(steps)
    step_seconds = (steps[last] - steps[WARM_STEPS]) / (last - WARM_STEPS)
    start = steps[WARM_STEPS] - started - (WARM_STEPS - 1) * step_seconds
    return Measured(work.batch / step_seconds, start)


def table_of(measured: dict[str, list[Measured]]) -> str:
    """Medians of all rounds, and our speed over the peer's by round."""
    lines = ["| | samples/s | start, s | times dlrm_main.py, by round |", "|---|---:|---:|---|"]
    for name, runs in measured.items():
        speed, start = (statistics.median(getattr(run, key) for run in runs) for key in ("speed", "start"))
        peers = measured.get(PEER, []) if name != PEER else []
        ratios = ", ".join(f"{run.speed / peer.speed:.2f}" for run, peer in zip(runs, peers, strict=False))
        lines.append(f"| {name} | {speed:,.0f} | {start:.1f} | {ratios} |")
    return "\n".join(lines)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dlrm", type=Path, help="a checkout of facebookresearch/dlrm; none: without it")
    parser.add_argument("--model", choices=MODELS, default="small")
    parser.add_argument("--engines", default=f"rowwise,adagrad,{PEER}", help=f"of {', '.join([*OURS, PEER])}")
    parser.add_argument("--ranks", type=int, default=1, help="of dlrm-train, without dlrm_main.py")
    parser.add_argument("--batch", type=int, default=2048, help="of all ranks")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if options.dlrm and options.ranks > 1:
        parser.error("--ranks needs dlrm_main.py left out: leave out --dlrm")
    if options.steps % 10 or options.steps <= WARM_STEPS:
        parser.error(f"--steps must be a multiple of 10 above {WARM_STEPS}, got {options.steps}")
    return options


def main() -> None:
    options = parse()
    names = [name for name in options.engines.split(",") if options.dlrm or name != PEER]
    shapes = MODELS[options.model]
    with tempfile.TemporaryDirectory(prefix="train-benchmark-") as temporary:
        folder = Path(temporary).resolve()
        dlrm = options.dlrm and options.dlrm.resolve()
        work = Work(shapes, options.batch, options.steps, options.ranks, folder, dlrm)
        shapes.write_rows(folder, work.batch * work.steps, "alpha=0")
        described = {**asdict(shapes), "ids": shapes.ids_per_feature}
        (folder / "shapes.json").write_text(json.dumps(described))  # for train_peers.py
        measured: dict[str, list[Measured]] = {name: [] for name in names}
        for number in range(options.rounds):
            for name in names[number % len(names) :] + names[: number % len(names)]:
                run = measure(name, work)
                measured[name].append(run)
                print(f"round {number + 1}: {name} {run.speed:,.0f} samples/s", file=sys.stderr, flush=True)
        cores = len(os.sched_getaffinity(0))
        print(
            f"{options.model}: batch {work.batch:,}, {work.steps} steps, {work.ranks} rank(s), {cores} cores; "
            f"medians of {options.rounds} rounds\n"
        )
        print(table_of(measured))


if __name__ == "__main__":
    main()
