"""A zoo of click logs with known click probabilities: what nothing chosen reaches on each, beside other tools.

    pip install 'dlrm-app[bench]'
    python benchmarks/logs.py --folder zoo                            # the reporting half, three seeds
    python benchmarks/logs.py --folder zoo --kinds choosing --seeds 1 --rows 50000 --methods default lightgbm \\
        "small rates: encoding=vocab / optimizer.sparse.lr=0.05 trainer.epochs=2"
    python benchmarks/logs.py --folder zoo --kinds sample.tsv         # lines of Criteo's train.txt, clicks as they are

Methods: ``default`` types what a new user types, dlrm-preprocess with nothing chosen and the command
of its "next:" line; "NAME: WORDS / WORDS" adds settings to dlrm-preprocess and dlrm-train;
``lightgbm`` (out-of-fold target encoding), ``catboost`` and ``pytorch`` (a short script) learn from
the same file, with val for their early stops. The last tenth of the lines is test, the tenth before it
val. A seed draws the log, and is the seed of what learns from it.

AUC, log loss and calibration are expected values: each row of test counts as a click with its known probability,
so the noise of drawn clicks is left out; ``best`` is the known probabilities themselves. Of Criteo's lines they
are what they are measured as: the clicks. Seconds are CPU seconds of whole processes; with ``--threads 1``, the
default, that is how long they take on a machine that does nothing else. Rules of ``experiment=auto`` are chosen
on half of the kinds, ``CHOOSING``, and reported on the others.
"""

import argparse
import os
import re
import resource
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from logs_kinds import CHOOSING, KINDS, REPORTING, write_log
from numpy.typing import NDArray

from dlrm_app.table import text_table

PEERS = ("lightgbm", "catboost", "pytorch")
METRICS = ("auc", "logloss", "calibration", "seconds")
Probabilities = NDArray[np.float64]  # of the rows of test, in their order


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=Path("zoo"), help="keeps logs and peers' scores")
    parser.add_argument("--kinds", nargs="+", default=["reporting"])
    parser.add_argument("--methods", nargs="+", default=["default", "lightgbm"])
    parser.add_argument("--rows", type=int, help="at most so many of each kind")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    halves = {"choosing": CHOOSING, "reporting": REPORTING, "all": tuple(KINDS)}
    for kind in (each for name in options.kinds for each in halves.get(name, (name,))):
        for seed in range(options.seeds):
            log = find_log(options.folder, kind, options.rows, seed)
            best = () if Path(kind).is_file() else ("best",)
            for method in (*best, *options.methods):
                result = measure(method, log, seed, options.threads)
                name = method.partition(":")[0]
                found.setdefault((kind, name), []).append(result)
                texts = "  ".join(f"{key} {result[key]:.5f}" for key in METRICS)
                print(f"{kind} {seed} {name}: {texts}", file=sys.stderr, flush=True)
    print(text_table(["log", "method", *METRICS, "AUC ahead of LightGBM"], list(rows_of(found))))


def rows_of(found: dict[tuple[str, str], list[dict[str, float]]]) -> Iterable[list[str]]:
    for (kind, method), results in found.items():
        mean = {key: np.mean([each[key] for each in results]) for key in METRICS}
        rival = [each["auc"] for each in found.get((kind, "lightgbm"), [])]
        ahead = np.array([each["auc"] for each in results]) - rival if rival else np.array([])
        yield [
            kind,
            method,
            *(f"{mean[key]:.{digits}f}" for key, digits in zip(METRICS, (4, 4, 3, 0), strict=True)),
            f"{ahead.mean():+.4f} ± {ahead.std():.4f}"
            if rival and method not in ("best", "lightgbm")
            else "",
        ]


def find_log(folder: Path, kind: str, rows: int | None, seed: int) -> Path:
    """Folder of log.csv, log.yaml and truth.npy, the probability of every line; makes it if it is not there."""
    sample = Path(kind)
    log = folder / f"{sample.stem}-{'all' if rows is None else rows}-{0 if sample.is_file() else seed}"
    if not (log / "truth.npy").exists():
        log.mkdir(parents=True, exist_ok=True)
        if sample.is_file():
            lines = sample.read_text().splitlines(keepends=True)[:rows]
            (log / "log.csv").write_text("".join(lines))
            np.save(log / "truth.npy", np.array([float(line[0]) for line in lines]))
        else:
            write_log(log, kind, rows, seed)
    return log


def measure(method: str, log: Path, seed: int, threads: int) -> dict[str, float]:
    truth = np.load(log / "truth.npy")
    truth = truth[len(truth) - len(truth) // 10 :]
    if method == "best":
        return {**scores(truth, truth), "seconds": 0}
    if method not in PEERS:
        predictions, seconds = ours(method, log, seed, threads)
        return {**scores(predictions, truth), "seconds": seconds}
    kept = log / f"{method}-{seed}-{threads}.npz"
    if not kept.exists():
        start, program = cpu_seconds(), str(Path(__file__).with_name("logs_peers.py"))
        run([sys.executable, program, method, str(log), str(seed), str(threads), str(log / "scores.npy")])
        np.savez(kept, scores=np.load(log / "scores.npy"), seconds=cpu_seconds() - start)
    found = np.load(kept)
    return {**scores(found["scores"], truth), "seconds": float(found["seconds"])}


def ours(method: str, log: Path, seed: int, threads: int) -> tuple[Probabilities, float]:
    """The probabilities, and the seconds of dlrm-preprocess and dlrm-train; dlrm-predict's are left out."""
    import pyarrow.parquet as pq

    preprocess_words, _, train_words = method.partition(":")[2].partition("/")
    work = log / f"work-{os.getpid()}"
    shutil.rmtree(work, ignore_errors=True)
    dataset = log / "log.yaml"
    start = cpu_seconds()
    said = run(
        [
            *command("preprocess"),
            *([f"dataset={dataset}"] if dataset.exists() else []),
            f"input.train={log}/log.csv",
            *("split.val=0.1", "split.test=0.1", f"threads={threads}", f"output={work}/data"),
            *shlex.split(preprocess_words),
        ]
    )
    suggested = re.search(r"next: dlrm-train (.*)", said)
    if suggested is None:
        sys.exit(f"dlrm-preprocess suggests no dlrm-train command:\n{said}")
    words = [f"trainer.seed={seed}", f"trainer.threads={threads}", f"output={work}/run"]
    said = run([*command("train"), *shlex.split(suggested[1]), *words, *shlex.split(train_words)])
    seconds = cpu_seconds() - start
    for line in re.findall(r"experiment=auto takes.*", said):
        print(line, file=sys.stderr)
    words = [f"model={work}/run", f"data.path={work}/data", f"output={work}/scores.parquet", "split=test"]
    run([*command("predict"), *words, f"threads={threads}"])
    found = pq.read_table(work / "scores.parquet")["score"].to_numpy().astype(np.float64)
    shutil.rmtree(work)
    return found, seconds


def command(name: str) -> list[str]:
    return [sys.executable, "-m", "dlrm_app.cli", name]


def run(words: list[str]) -> str:
    """What the command prints, errors too; ends the benchmark if it fails."""
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        sys.exit(f"{shlex.join(words)}\n{done.stdout[-3000:]}")
    return done.stdout


def cpu_seconds() -> float:
    """Of all processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def scores(found: Probabilities, truth: Probabilities) -> dict[str, float]:
    """Expected AUC, log loss and calibration of ``found`` where row i is a click with probability ``truth[i]``."""
    from sklearn.metrics import roc_auc_score

    if len(found) != len(truth):
        sys.exit(f"{len(found)} scores for {len(truth)} rows of test")
    found = np.clip(found, 1e-7, 1 - 1e-7)
    labels = np.repeat([1, 0], len(truth))
    auc = roc_auc_score(labels, np.tile(found, 2), sample_weight=np.concatenate([truth, 1 - truth]))
    loss = -(truth * np.log(found) + (1 - truth) * np.log(1 - found)).mean()
    return {"auc": auc, "logloss": loss, "calibration": found.mean() / truth.mean()}


if __name__ == "__main__":
    main()
