"""Evaluation beside training in one run, both from disk: python benchmarks/evaluation.py

26 tables × 10,000 × 32, batch 2,048, fp32, on 100,000 synthetic rows. Training steps and evaluations with
exact metrics take turns; medians over rounds, and of the ratios to the round's training: by batch size. What
metrics, also of groups, cost of many more rows: benchmarks/exact_metrics.py.
"""

import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from train_models import SPEED

from dlrm_app.config.compose import compose_config
from dlrm_app.config.train import TrainConfig
from dlrm_app.config.words import WordReader
from dlrm_app.distributed.runtime import start_runtime
from dlrm_app.evaluation.evaluate import evaluate as evaluate_batches
from dlrm_app.evaluation.label_rows import MAIN
from dlrm_app.evaluation.metrics import ClickMetrics
from dlrm_app.loader.batch import EvalBatches, choose_loading
from dlrm_app.runs.folder import open_run_folder
from dlrm_app.training.loop import train_batches
from dlrm_app.training.setup import open_dataset
from dlrm_app.training.state import TrainingRun
from dlrm_app.training.train import prepare

ROUNDS = 5
SIZES = (1024, 2048, 4096, 8192, 16384, 65536)


def main() -> None:
    with start_runtime(num_threads=None) as runtime, tempfile.TemporaryDirectory() as scratch:
        config = write_inputs(Path(scratch))
        manifest, tables = open_dataset(config, runtime)
        with open_run_folder(f"{scratch}/run", "none", runtime) as folder:
            measure(prepare(config, manifest, tables, folder, runtime))


def write_inputs(scratch: Path) -> TrainConfig:
    SPEED.write_rows(scratch, 100_000)
    keys = [f"data.path={scratch}/dataset", f"tables={scratch}/tables.yaml", "trainer.global_batch_size=2048"]
    return compose_config(
        "train", TrainConfig, WordReader(TrainConfig, "train").read([*keys, *SPEED.settings()]).settings
    )


def measure(run: TrainingRun) -> None:
    train(run), evaluate(run, 4096)
    rates, ratios = defaultdict(list), defaultdict(list)
    for _ in range(ROUNDS):
        training = train(run)
        rates["training"].append(training)
        for size in SIZES:
            name = f"evaluation, batches of {size:,}"
            rates[name].append(evaluate(run, size))
            ratios[name].append(rates[name][-1] / training)
        grouped = run.trainable.features[0]
        for name, ranking in {"GAUC and MRR": (), "all metrics of groups": (5, 10)}.items():
            name = f"batches of 4,096, {name}"
            rates[name].append(evaluate(run, 4096, grouped, ranking))
            ratios[name].append(rates[name][-1] / training)
    for name, values in rates.items():
        of_training = f"{statistics.median(ratios[name]):.2f} times training's" if name in ratios else ""
        print(f"{name:32} {statistics.median(values):10,.0f} rows/s  {of_training}")


def train(run: TrainingRun) -> float:
    """Rows a second of an epoch."""
    run.trainable.model.train()
    batches = train_batches(run)
    with batches:
        stream, steps = iter(batches), len(batches)
        started = time.perf_counter()
        for _ in range(steps):
            run.trainable.pipeline.progress(stream)
    run.trainable.pipeline.detach()
    return steps * run.config.trainer.global_batch_size / (time.perf_counter() - started)


def evaluate(run: TrainingRun, size: int, group_by: str | None = None, ranking: Sequence[int] = ()) -> float:
    """Rows a second of an evaluation of the train split, with metrics of the groups of a feature if it is named."""
    runtime = run.runtime
    loading = choose_loading(run.config.data.prefetch_batches, run.config.data.decode_workers, runtime)
    batches = EvalBatches(
        run.manifest,
        "train",
        run.trainable.features,
        batch_size=size,
        rank=runtime.rank,
        world_size=runtime.world_size,
        loading=loading,
    )
    with batches:
        metrics = {MAIN: ClickMetrics("train", group_by, ranking=ranking)}
        values, seconds = evaluate_batches(run.forward_passes, batches, metrics, runtime, "train")
    return values["num_samples"] / seconds


if __name__ == "__main__":
    main()
