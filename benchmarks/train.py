"""dlrm-train from disk beside facebookresearch/dlrm's two trainers, each a command of its own, in turn.

    git clone https://github.com/facebookresearch/dlrm
    python benchmarks/train.py --dlrm dlrm                                    # the shapes of `small`, three rounds
    python benchmarks/train.py --dlrm dlrm --model kaggle --engines adagrad,dlrm_main --rounds 5

Same tables, MLPs, batch size, threads and machine. dlrm-train reads Parquet and shuffles it; dlrm_main.py trains on
random batches, and on .npy files of the same rows, which it loads whole before its first step and does not shuffle;
dlrm_s_pytorch.py on random batches. Ids are uniform, as the peers draw them. What had to be put around the peers is in
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
from dataclasses import dataclass
from pathlib import Path

WARM_STEPS = 20
NUM_TABLES, NUM_DENSE = 26, 13
KAGGLE_ROWS = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194,
    27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)  # fmt: skip


@dataclass(frozen=True)
class Shapes:
    """Of a model: rows of its 26 tables and their width, the layers of its MLPs, and what lies between them."""

    rows: Sequence[int]
    dim: int
    bottom: Sequence[int]
    top: Sequence[int]
    interaction: str = "dlrm"


MODELS = {
    "small": Shapes([10_000] * NUM_TABLES, 32, (512, 256, 32), (512, 256, 1)),
    "kaggle": Shapes(KAGGLE_ROWS, 16, (512, 256, 64, 16), (512, 256, 1)),
    "dcn": Shapes([10_000] * NUM_TABLES, 32, (512, 256, 32), (512, 256, 1), "dcn"),
}
DCN_LAYERS, DCN_RANK = 3, 512


@dataclass(frozen=True)
class Work:
    """What every engine is given."""

    shapes: Shapes
    batch_size: int
    steps: int
    folder: Path
    dlrm: Path | None

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
            *(sys.executable, "-m", "dlrm_app.cli.train", f"data.path={work.folder / 'dataset'}"),
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


def on_two_ranks(engine: Callable[[Work], list[str]]) -> Callable[[Work], list[str]]:
    """The same command by torchrun, which gives each of two ranks half of the cores."""

    def command(work: Work) -> list[str]:
        python, *rest = engine(work)
        return [python, "-m", "torch.distributed.run", "--nproc-per-node", "2", *rest]

    return command


def our_steps(work: Work) -> dict[int, float]:
    """Step → when its line was logged."""
    lines = (work.folder / "run" / "metrics.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    return {event["step"]: event["time"] for event in events if event["event"] == "train"}


# the peers


def dlrm_main(*more: str) -> Callable[[Work], list[str]]:
    """The command of torchrec_dlrm/dlrm_main.py, with Adagrad; the one that it has beside SGD."""

    def command(work: Work) -> list[str]:
        assert work.dlrm is not None
        shapes = work.shapes
        filled = [each.replace("{npy}", str(work.folder / "npy")) for each in more]
        return [
            *(sys.executable, str(Path(__file__).with_name("train_peers.py"))),
            *(str(work.dlrm / "torchrec_dlrm" / "dlrm_main.py"), str(work.folder / "times.json")),
            *("--num_embeddings_per_feature", numbers(shapes.rows), "--embedding_dim", f"{shapes.dim}"),
            *("--dense_arch_layer_sizes", numbers(shapes.bottom)),
            *("--over_arch_layer_sizes", numbers(shapes.top)),
            *("--interaction_type", "dcn" if shapes.interaction == "dcn" else "original"),
            *("--batch_size", f"{work.batch_size}", "--limit_train_batches", f"{work.steps}"),
            *("--limit_val_batches", "1", "--limit_test_batches", "1"),
            *("--adagrad", "--learning_rate", "0.005", *filled),
        ]

    return command


def dlrm_s_pytorch(optimizer: str) -> Callable[[Work], list[str]]:
    """The command of dlrm_s_pytorch.py."""

    def command(work: Work) -> list[str]:
        assert work.dlrm is not None
        shapes = work.shapes
        return [
            *(sys.executable, str(Path(__file__).with_name("train_peers.py"))),
            *(str(work.dlrm / "dlrm_s_pytorch.py"), str(work.folder / "times.json")),
            *(
                "--arch-sparse-feature-size",
                f"{shapes.dim}",
                "--arch-embedding-size",
                numbers(shapes.rows, "-"),
            ),
            *("--arch-mlp-bot", numbers([NUM_DENSE, *shapes.bottom], "-")),
            *("--arch-mlp-top", numbers(shapes.top, "-"), "--loss-function", "bce"),
            *("--mini-batch-size", f"{work.batch_size}", "--num-batches", f"{work.steps}"),
            *("--data-size", f"{work.num_rows}", "--num-indices-per-lookup", "1"),
            *("--optimizer", optimizer, "--learning-rate", "0.005", "--print-freq", "1000000"),
        ]

    return command


def numbers(values: Sequence[int], between: str = ",") -> str:
    return between.join(map(str, values))


def peer_steps(work: Work) -> dict[int, float]:
    """Step → when it ended."""
    times = json.loads((work.folder / "times.json").read_text())
    return dict(enumerate(times[: work.steps], start=1))


@dataclass(frozen=True)
class Engine:
    """``command`` of a Work, and ``steps``, when its steps ended; ``models`` that it knows."""

    name: str
    command: Callable[[Work], list[str]]
    steps: Callable[[Work], dict[int, float]]
    models: Sequence[str] = tuple(MODELS)
    is_peer: bool = True


NPY = ("--dataset_name", "criteo_kaggle", "--in_memory_binary_criteo_path", "{npy}")
ENGINES = {
    "rowwise": Engine("dlrm-train, row-wise Adagrad", ours("rowwise_adagrad"), our_steps, is_peer=False),
    "rowwise_2": Engine(
        "dlrm-train, row-wise Adagrad, two ranks",
        on_two_ranks(ours("rowwise_adagrad")),
        our_steps,
        is_peer=False,
    ),
    "adagrad": Engine("dlrm-train, Adagrad", ours("adagrad"), our_steps, is_peer=False),
    "rowwise_bf16": Engine(
        "dlrm-train, row-wise Adagrad, bf16",
        ours("rowwise_adagrad", "trainer.precision=bf16"),
        our_steps,
        is_peer=False,
    ),
    "dlrm_main": Engine("dlrm_main.py, Adagrad, random data", dlrm_main(), peer_steps),
    "dlrm_main_npy": Engine("dlrm_main.py, Adagrad, .npy", dlrm_main(*NPY), peer_steps),
    "dlrm_s": Engine(
        "dlrm_s_pytorch.py, Adagrad, random data", dlrm_s_pytorch("adagrad"), peer_steps, ("small", "kaggle")
    ),
    "dlrm_s_rowwise": Engine(
        "dlrm_s_pytorch.py, row-wise Adagrad, random data",
        dlrm_s_pytorch("rwsadagrad"),
        peer_steps,
        ("small", "kaggle"),
    ),
}
DEFAULT_ENGINES = ("rowwise", "adagrad", "dlrm_main", "dlrm_main_npy", "dlrm_s")


# the data


def make_data(work: Work) -> None:
    """The same rows as a dataset of dlrm-train and as dlrm_main.py's .npy files; kept if they are there already."""
    import numpy as np
    import pyarrow.parquet as pq
    import yaml

    from dlrm_app.config.compose import compose_config
    from dlrm_app.config.generate import GenerateConfig
    from dlrm_app.synthetic import generate

    specs = [
        {"name": f"t_{index}", "rows": rows, "dim": work.shapes.dim, "features": [f"cat_{index}"]}
        for index, rows in enumerate(work.shapes.rows)
    ]
    (work.folder / "tables.yaml").write_text(yaml.safe_dump({"specs": specs}))
    dataset, npy = work.folder / "dataset", work.folder / "npy"
    if not (dataset / "manifest.json").exists():
        keys = [f"tables={work.folder / 'tables.yaml'}", "format=dataset", "alpha=0", f"output={dataset}"]
        keys += [f"num_dense={NUM_DENSE}", f"rows={work.num_rows}"]
        generate(compose_config("generate", GenerateConfig, keys))
    if not npy.exists():
        npy.mkdir()
        table = pq.read_table(sorted((dataset / "train").glob("*.parquet")))
        parts = {
            "dense": ([f"num_{index}" for index in range(NUM_DENSE)], np.float32),
            "sparse": ([f"cat_{index}" for index in range(NUM_TABLES)], np.int32),
            "labels": (["label"], np.int32),
        }
        for name, (columns, kind) in parts.items():
            values = np.stack([table[column].to_numpy().astype(kind) for column in columns], axis=1)
            np.save(npy / f"train_{name}.npy", values)


# measuring


def measure(engine: Engine, work: Work) -> Measured:
    """Runs ``engine`` once; ends the program if it fails."""
    shutil.rmtree(work.folder / "run", ignore_errors=True)
    with socket.create_server(("localhost", 0)) as server:
        port = server.getsockname()[1]
    ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    environment = {**os.environ, "MASTER_ADDR": "localhost", "MASTER_PORT": f"{port}"}
    environment |= ranks if engine.is_peer else {"PYTHONPATH": str(Path(__file__).parents[1])}
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
    parser.add_argument("--dlrm", type=Path, help="a checkout of facebookresearch/dlrm; none: no peers")
    parser.add_argument("--model", choices=MODELS, default="small")
    parser.add_argument("--engines", default=",".join(DEFAULT_ENGINES), help=f"of {', '.join(ENGINES)}")
    parser.add_argument("--batch-size", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="keeps the data for the next time")
    options = parser.parse_args()
    if options.steps % 10 or options.steps <= WARM_STEPS:
        parser.error(f"--steps must be a multiple of 10 above {WARM_STEPS}, got {options.steps}")
    unknown = set(options.engines.split(",")) - set(ENGINES)
    if unknown:
        parser.error(f"--engines: no {', '.join(sorted(unknown))}; there are {', '.join(ENGINES)}")
    return options


def main() -> None:
    options = parse()
    names = [name for name in options.engines.split(",") if options.model in ENGINES[name].models]
    if options.dlrm is None:
        names = [name for name in names if not ENGINES[name].is_peer]
    with tempfile.TemporaryDirectory(prefix="train-benchmark-") as temporary:
        folder = (options.folder or Path(temporary)) / f"{options.model}-{options.batch_size}-{options.steps}"
        folder.mkdir(parents=True, exist_ok=True)
        dlrm = options.dlrm.resolve() if options.dlrm else None
        work = Work(MODELS[options.model], options.batch_size, options.steps, folder.resolve(), dlrm)
        make_data(work)
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
