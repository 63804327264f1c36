"""Every architecture beside DLRM and DCN at equal tables: python benchmarks/architectures.py [--criteo SAMPLE.tsv]

    python benchmarks/architectures.py --folder zoo --criteo sample.tsv                    # all; takes most of an hour
    python benchmarks/architectures.py --folder zoo --kinds tastes --models dlrm dcn qnn   # some

Kinds of click logs of ``benchmarks/logs_kinds.py``, and lines of Criteo's train.txt. dlrm-preprocess chooses the columns, ``experiment=auto``
rates, batch and schedule; one model of each architecture, tables of one width, MLPs of [64]. A seed draws the log (Criteo's
lines stay) and is the seed of the training. Prints means over the seeds and 95% intervals (Student's t) of the paired
differences to ``dlrm`` and ``dcn``; AUC and log loss of generated logs are expected values, as in ``benchmarks/logs.py``.

Then, on the first log, a process for each architecture: training rows a CPU second, of what an epoch takes beyond 20
steps, and the peak memory. ``--seeds 0`` prints these alone.
"""

import argparse
import os
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from logs import find_log, scores
from tasks import interval

import dlrm_app as dlrm
from dlrm_app.table import text_table

KINDS = ("tastes", "numbers", "followers", "numbers_ids")
"""Two to choose by, two to report on."""
MLPS = {"model.bottom_mlp": [64], "model.top_mlp": [64]}
TOP = {"model.top_mlp": [64]}
MODELS: dict[str, dict[str, object]] = {
    "dlrm": MLPS,
    "dcn": {**MLPS, "model.dcn_low_rank_dim": 32},
    "projection": {**MLPS, "model.projection_branch1": [8], "model.projection_branch2": [8]},
    "concat": TOP,
    "dcn_parallel": TOP,
    "gdcn": TOP,
    "gdcn_parallel": TOP,
    "finalnet": TOP,
    "dcnv3": {},
    "qnn": {
        "model.dcn_num_layers": 2,
        "model.qnn_num_rows": 2,
    },  # its four layers of 5 take ten times as long
}
"""What differs from conf/model/NAME.yaml."""
FEW_COLUMNS = {"dense.bucket_columns": None, "dense.target_columns": None}
"""Of Criteo's lines: 39 vectors, of which nothing chosen would make 78."""
FEW_STEPS, BATCH = 20, 256


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=Path("zoo"), help="keeps logs and datasets")
    parser.add_argument("--kinds", nargs="*", default=KINDS)
    parser.add_argument("--criteo", type=Path)
    parser.add_argument("--models", nargs="+", default=[*MODELS])
    parser.add_argument("--rows", type=int, default=20_000, help="of each kind")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--width", type=int, default=8, help="of the tables")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    kinds = [*([str(options.criteo)] if options.criteo else []), *options.kinds]
    for kind in kinds if options.seeds else ():
        found = {name: np.zeros((options.seeds, 2)) for name in options.models}  # AUC, log loss
        for seed in range(options.seeds):
            log = find_log(options.folder, kind, options.rows, seed)
            for name in options.models:
                found[name][seed] = quality(log, name, seed, options.width)
                print(Path(kind).stem, seed, name, *found[name][seed], file=sys.stderr, flush=True)
        columns = [f"{metric} less {other}" for other in ("dlrm", "dcn") for metric in ("AUC", "log loss")]
        table = text_table(["", "AUC", "log loss", *columns], [row_of(found, name) for name in found])
        print(f"\n{Path(kind).stem}\n{table}", flush=True)
    data = dataset(find_log(options.folder, kinds[0], options.rows, 0))
    costs = [[name, *cost_alone(data, name, options.width)] for name in options.models]
    print(text_table(["", "rows a CPU second", "peak MiB"], costs))


def row_of(found: dict[str, np.ndarray], name: str) -> list[str]:
    means = [f"{mean:.4f}" for mean in found[name].mean(0)]
    others = [found[other] for other in ("dlrm", "dcn") if other in found]
    return [name, *means, *(interval((found[name] - other)[:, n]) for other in others for n in range(2))]


def dataset(log: Path) -> Path:
    """The encoded log, the last two tenths of which are val and test; made where it is missing."""
    described = log / "log.yaml"
    given = {"dataset": described} if described.exists() else {"dataset": "criteo_kaggle", **FEW_COLUMNS}
    given |= {"input.train": log / "log.csv", "split.val": 0.1, "split.test": 0.1, "threads": 1}
    if not (log / "data/manifest.json").exists():
        dlrm.preprocess({**given, "output": log / "data"})
    return log / "data"


def settings(data: Path, name: str, width: int) -> dict[str, object]:
    """Those of dlrm-train by key."""
    one = {"model": name, "model.ensemble_size": 1, "tables.embedding_dim": width, **MODELS[name]}
    rest = {"trainer.threads": 1, "report.enabled": False}
    return {"data.path": data, "tables": "dataset", **one, **rest}


def quality(log: Path, name: str, seed: int, width: int) -> list[float]:
    """[AUC, log loss] on test."""
    data, truth = dataset(log), np.load(log / "truth.npy")
    with tempfile.TemporaryDirectory() as folder:
        given = {"trainer.seed": seed, "evaluation.test": False, "output": f"{folder}/run"}
        dlrm.train({**settings(data, name, width), **given})
        scored = {"model": f"{folder}/run", "data.path": data, "split": "test", "threads": 1}
        dlrm.predict({**scored, "output": f"{folder}/scores.parquet"})
        found = pq.read_table(f"{folder}/scores.parquet")["score"].to_numpy().astype(np.float64)
    reached = scores(found, truth[len(truth) - len(found) :])
    return [reached["auc"], reached["logloss"]]


def cost(data: Path, name: str, width: int) -> list[str]:
    """[training rows a CPU second, peak MiB] of this process, which must be a new one."""
    trained, seconds = [], []
    for steps in (1, FEW_STEPS, None):  # the first compiles
        with tempfile.TemporaryDirectory() as folder:
            given = {
                "trainer.max_steps": steps,
                "trainer.global_batch_size": BATCH,
                "output": f"{folder}/run",
            }
            start = time.process_time()
            run = dlrm.train({**settings(data, name, width), **given})
            seconds.append(time.process_time() - start)
            trained.append(BATCH * run.result.steps)
    speed = (trained[2] - trained[1]) / (seconds[2] - seconds[1])
    peak = peak_memory()
    return [f"{speed:,.0f}", f"{peak:,.0f}"]


def peak_memory() -> float:
    """MiB of this process since its program began; ru_maxrss would count the process that started it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def cost_alone(data: Path, name: str, width: int) -> list[str]:
    """``cost`` in a process of its own."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(cost, data, name, width).result()


if __name__ == "__main__":
    main()
