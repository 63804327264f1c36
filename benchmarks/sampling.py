"""Training on a tenth of the negatives beside training on all rows: python benchmarks/sampling.py [ROWS] [CLICK_RATE]

A log of dlrm-generate with 1% clicks, of which the last third is the test split, whole in both. The same settings for
both, but a batch size: a quarter for the sample, which has fewer rows. Prints the time of training, the AUC on test,
and the expected calibration: the sum of the predictions over that of the true probabilities.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

import dlrm_app as dlrm
from dlrm_app.config.compose import compose_config
from dlrm_app.config.generate import GenerateConfig
from dlrm_app.config.words import WordReader
from dlrm_app.tools.synthetic.clicks import make_source

TEST, SHARE, BLOCK = 1 / 3, 0.1, 1 << 14
RECIPE = {"experiment": "null", "tables": "dataset", "tables.embedding_dim": 16, "report.enabled": False}
RECIPE |= {"schedule": "cosine", "trainer.calibrate": True}


def main(rows: int = 6_000_000, click_rate: float = 0.01) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        log = f"{scratch}/log.tsv"
        keys = [f"output={log}", f"rows={rows}", f"signal.click_rate={click_rate}", "signal.auc=0.75"]
        source = make_source(
            compose_config(
                "generate", GenerateConfig, WordReader(GenerateConfig, "generate").read(keys).settings
            )
        )
        dlrm.generate(*keys)
        first = rows - int(rows * TEST)
        chances = [source.block(at, min(BLOCK, rows - at))[1] for at in range(first, rows, BLOCK)]
        expected = float(np.concatenate(chances).sum())
        results = {}
        for name, share in (("all negatives", None), (f"{SHARE:g} of the negatives", SHARE)):
            results[name] = measure(Path(scratch) / str(share), log, share, expected)
            print(name, results[name], flush=True)
        (whole, sampled) = results.values()
        print(f"time {sampled['seconds'] / whole['seconds']:.3f}, AUC {sampled['auc'] - whole['auc']:+.5f}")


def measure(folder: Path, log: str, share: float | None, expected: float) -> dict[str, float]:
    """Seconds of training, AUC on test, expected calibration."""
    data, run, scores = folder / "data", folder / "run", folder / "scores.parquet"
    keys = {"sampling.negatives": None if share is None else share, "split.test": TEST}
    choices = {"encoding": "hash", "encoding.num_embeddings": 20_000, "encoding.crosses": None}
    choices |= {"dense.target_columns": None, "dense.bucket_columns": None, "dense.transform": "log1p"}
    dlrm.preprocess({"dataset": "criteo_kaggle", "input.train": log, "output": data, **keys, **choices})
    trained = dlrm.train(
        {
            "data.path": data,
            "output": run,
            "trainer.global_batch_size": 1024 if share is None else 256,
            **RECIPE,
        }
    )
    dlrm.predict({"model": run, "data.path": data, "split": "test", "output": scores})
    predicted = float(pq.read_table(scores)["score"].to_numpy().sum())
    result = trained.result
    return {
        "seconds": round(result.train_seconds, 1),
        "steps": result.steps,
        "auc": round(result.evals["test"].metrics["auc"], 5),
        "expected_calibration": round(predicted / expected, 4),
    }


if __name__ == "__main__":
    main(*(kind(word) for kind, word in zip((int, float), sys.argv[1:], strict=False)))
