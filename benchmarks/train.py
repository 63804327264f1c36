"""dlrm-train from disk beside facebookresearch/dlrm's dlrm_main.py, each a command of its own, in turn.

    git clone https://github.com/facebookresearch/dlrm
    python benchmarks/train.py --dlrm dlrm                 # the shapes of `small`, three rounds
    python benchmarks/train.py --dlrm dlrm --model kaggle --engines adagrad,dlrm_main --rounds 5

Same tables, MLPs, batch size, threads and machine. dlrm-train reads Parquet and shuffles it; dlrm_main.py trains on
random batches in memory.
Ids are uniform, as dlrm_main.py draws them. The models are in train_models.py, what had to be put around dlrm_main.py in
train_peers.py.

samples/s: from the end of step WARM_STEPS to the end of the last. Start: from the command to the end of the first
step, reckoned: step WARM_STEPS ends so much later, less the steps between at the later pace. Peak: the most memory that
the process had, its data with it.
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
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from train_models import DCN, DCN_LAYERS, DCN_RANK, KAGGLE, SPEED, TINY, Shapes

WARM_STEPS = 20
MODELS = {"small": SPEED, "kaggle": KAGGLE, "dcn": DCN, "tiny": TINY}


@dataclass(frozen=True)
class Work:
    """What every engine is given."""

    shapes: Shapes
    batch_size: int
    steps: int
    folder: Path
    dlrm: Path | None
    """A checkout of facebookresearch/dlrm."""

    @property
    def num_rows(self) -> int:
        return self.batch_size * self.steps


@dataclass(frozen=True)
class Measured:
    """One run of an engine: samples/s, seconds from the command to its first step and to its end, MiB."""

    speed: float
    start: float
    wall: float
    peak: float


# ours


def ours(optimizer: str, *more: str) -> Callable[[Work], list[str]]:
    """The command of dlrm-train from disk."""

    def command(work: Work) -> list[str]:
        shapes = work.shapes
        dcn = [f"model.dcn_num_layers={DCN_LAYERS}", f"model.dcn_low_rank_dim={DCN_RANK}"]
        return [
            *(sys.executable, "-m", "dlrm_app.cli", "train", f"data.path={work.folder / 'dataset'}"),
            *(
                f"tables={work.folder / 'tables.yaml'}",
                f"model={shapes.interaction}",
                f"optimizer={optimizer}",
            ),
            *(dcn if shapes.interaction == "dcn" else []),
            f"model.bottom_mlp={list(shapes.bottom)}".replace(" ", ""),
            f"model.top_mlp={list(shapes.top)}".replace(" ", ""),
            *(f"trainer.global_batch_size={work.batch_size}", f"trainer.max_steps={work.steps}"),
            *("trainer.log_every_steps=10", f"output={work.folder / 'run'}", *more),
        ]

    return command


def our_steps(work: Work) -> dict[int, float]:
    """Step → when its line was logged."""
    lines = (work.folder / "run" / "metrics.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    return {event["step"]: event["time"] for event in events if event["event"] == "train"}


# the peers


def dlrm_main(work: Work) -> list[str]:
    """The command of torchrec_dlrm/dlrm_main.py, with Adagrad; the one that it has beside SGD."""
    shapes = work.shapes
    return [
        *(sys.executable, str(Path(__file__).with_name("train_peers.py"))),
        *(str(Path(str(work.dlrm)) / "torchrec_dlrm" / "dlrm_main.py"), str(work.folder)),
        *("--num_embeddings_per_feature", numbers(shapes.rows), "--embedding_dim", f"{shapes.dim}"),
        *("--dense_arch_layer_sizes", numbers(shapes.bottom)),
        *("--over_arch_layer_sizes", numbers(shapes.top)),
        *("--interaction_type", "dcn" if shapes.interaction == "dcn" else "original"),
        *("--batch_size", f"{work.batch_size}", "--limit_train_batches", f"{work.steps}"),
        *("--limit_val_batches", "1", "--limit_test_batches", "1"),
        *("--adagrad", "--learning_rate", "0.005"),
    ]


def numbers(values: Sequence[int]) -> str:
    return ",".join(map(str, values))


def peer_steps(work: Work) -> dict[int, float]:
    """Step → when it ended."""
    times = json.loads((work.folder / "times.json").read_text())
    return dict(enumerate(times[: work.steps], start=1))


@dataclass(frozen=True)
class Engine:
    """``command`` of a Work, and ``steps``, when its steps ended."""

    name: str
    command: Callable[[Work], list[str]]
    steps: Callable[[Work], dict[int, float]] = peer_steps

    @property
    def is_peer(self) -> bool:
        return self.steps is peer_steps


ENGINES = {
    "rowwise": Engine("dlrm-train, row-wise Adagrad", ours("rowwise_adagrad"), our_steps),
    "adagrad": Engine("dlrm-train, Adagrad", ours("adagrad"), our_steps),
    "rowwise_bf16": Engine(
        "dlrm-train, row-wise Adagrad, bf16",
        ours("rowwise_adagrad", "trainer.precision=bf16", "trainer.compile=auto"),
        our_steps,
    ),
    "dlrm_main": Engine("dlrm_main.py, Adagrad, random data", dlrm_main),
}
DEFAULT_ENGINES = ("rowwise", "adagrad", "dlrm_main")


# the data


def make_data(work: Work) -> None:
    """The rows as a dataset of dlrm-train, and their shapes for the peer; kept if they are there already."""
    import yaml

    from dlrm_app.config.compose import compose_config
    from dlrm_app.config.datasets import GenerateConfig
    from dlrm_app.synthetic import generate

    shapes = work.shapes
    specs = [
        {
            "name": f"t_{index}",
            "rows": rows,
            "dim": shapes.dim,
            "features": [f"cat_{index}"],
            "pooling_factors": [shapes.ids_per_feature[index]],
        }
        for index, rows in enumerate(shapes.rows)
    ]
    told = {
        **asdict(shapes),
        "ids": shapes.ids_per_feature,
        "batch_size": work.batch_size,
        "steps": work.steps,
    }
    (work.folder / "shapes.json").write_text(json.dumps(told))
    (work.folder / "tables.yaml").write_text(yaml.safe_dump({"specs": specs}))
    dataset = work.folder / "dataset"
    if not (dataset / "manifest.json").exists():
        keys = [f"tables={work.folder / 'tables.yaml'}", "format=dataset", "alpha=0", f"output={dataset}"]
        keys += [f"num_dense={shapes.num_dense}", f"rows={work.num_rows}"]
        generate(compose_config("generate", GenerateConfig, keys))


# measuring


def peer_environment() -> dict[str, str]:
    """Of a trainer that torchrun would start."""
    with socket.create_server(("localhost", 0)) as server:
        port = server.getsockname()[1]
    ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    return {**os.environ, "MASTER_ADDR": "localhost", "MASTER_PORT": f"{port}", **ranks}


def measure(engine: Engine, work: Work) -> Measured:
    """Runs ``engine`` once; ends the program if it fails. What it saved is gone before the next one starts."""
    shutil.rmtree(work.folder / "run", ignore_errors=True)
    environment = peer_environment() if engine.is_peer else None  # None: this process's
    started = time.time()
    with (work.folder / "log").open("w+") as log:
        process = subprocess.Popen(
            engine.command(work), env=environment, cwd=work.folder, stdout=log, stderr=subprocess.STDOUT
        )
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.time() - started
        if status:
            log.seek(0)
            sys.exit(f"{engine.name} failed:\n{log.read()[-3000:]}")
    steps = engine.steps(work)
    shutil.rmtree(work.folder / "run", ignore_errors=True)
    os.sync()
    last = max(steps)
    step_seconds = (steps[last] - steps[WARM_STEPS]) / (last - WARM_STEPS)
    return Measured(
        speed=work.batch_size / step_seconds,
        start=steps[WARM_STEPS] - started - (WARM_STEPS - 1) * step_seconds,
        wall=wall,
        peak=usage.ru_maxrss / 1024,
    )


def speed_table(measured: dict[str, list[Measured]]) -> str:
    """Medians of all rounds."""
    lines = ["| | samples/s | start, s | whole command, s | peak MiB |", "|---|---:|---:|---:|---:|"]
    for name, runs in measured.items():
        speed, start, wall, peak = (
            statistics.median(getattr(run, key) for run in runs) for key in ("speed", "start", "wall", "peak")
        )
        lines.append(f"| {ENGINES[name].name} | {speed:,.0f} | {start:.1f} | {wall:.1f} | {peak:,.0f} |")
    return "\n".join(lines)


def ratio_table(measured: dict[str, list[Measured]]) -> str:
    """Our speed over each peer's: the median of the rounds, and every round."""
    lines = ["| | over | median | by round |", "|---|---|---:|---|"]
    for ours in (name for name in measured if not ENGINES[name].is_peer):
        for peer in (name for name in measured if ENGINES[name].is_peer):
            ratios = [a.speed / b.speed for a, b in zip(measured[ours], measured[peer], strict=True)]
            by_round = ", ".join(f"{ratio:.2f}" for ratio in ratios)
            names = f"{ENGINES[ours].name} | {ENGINES[peer].name}"
            lines.append(f"| {names} | {statistics.median(ratios):.2f}× | {by_round} |")
    return "\n".join(lines)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--dlrm", type=Path, help="a checkout of facebookresearch/dlrm; none: without its engines"
    )
    parser.add_argument("--model", choices=MODELS, default="small")
    parser.add_argument("--engines", default=",".join(DEFAULT_ENGINES), help=f"of {', '.join(ENGINES)}")
    parser.add_argument("--batch-size", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3, help="0: the data alone are made")
    parser.add_argument("--folder", type=Path, help="keeps the data for the next time")
    options = parser.parse_args()
    if options.steps % 10 or options.steps <= WARM_STEPS:
        parser.error(f"--steps must be a multiple of 10 above {WARM_STEPS}, got {options.steps}")
    return options


def main() -> None:
    options = parse()
    names = [name for name in options.engines.split(",") if options.dlrm or not ENGINES[name].is_peer]
    with tempfile.TemporaryDirectory(prefix="train-benchmark-") as temporary:
        folder = (options.folder or Path(temporary)) / f"{options.model}-{options.batch_size}-{options.steps}"
        folder.mkdir(parents=True, exist_ok=True)
        work = Work(
            MODELS[options.model],
            options.batch_size,
            options.steps,
            folder.resolve(),
            options.dlrm and options.dlrm.resolve(),
        )
        make_data(work)
        if not options.rounds:
            return
        measured: dict[str, list[Measured]] = {name: [] for name in names}
        for number in range(options.rounds):
            for name in names[number % len(names) :] + names[: number % len(names)]:
                run = measure(ENGINES[name], work)
                measured[name].append(run)
                print(f"round {number + 1}: {name} {run.speed:,.0f} samples/s", file=sys.stderr, flush=True)
        cores = len(os.sched_getaffinity(0))
        print(
            f"{options.model}: batch {options.batch_size:,}, {options.steps} steps, {cores} cores; "
            f"medians of {options.rounds} rounds\n"
        )
        print(speed_table(measured))
        print(f"\n{ratio_table(measured)}")


if __name__ == "__main__":
    main()
