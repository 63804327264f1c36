"""What embeddings that travel in fewer bits cost in AUC: experiment=kaggle_small on 2 ranks, table-wise.

dlrm-preprocess experiment=kaggle_small input.train=sample.tsv split.val=0.15 split.test=0.15 output=small
torchrun --standalone --nproc-per-node 2 benchmarks/collectives.py small --seeds 3

Prints test's AUC and log loss by precision, forward and backward: mean over the seeds, and the mean and the largest
difference from fp32's of the same seed.
"""

import argparse
import contextlib
import logging
import os
import tempfile
from pathlib import Path

import numpy as np

from dlrm_app.cli.launch import leave
from dlrm_app.config.compose import compose_config
from dlrm_app.config.train import TrainConfig
from dlrm_app.table import text_table
from dlrm_app.training.train import train

SETTINGS = [("fp32", "fp32"), ("fp16", "fp16"), ("bf16", "bf16"), ("int8", "bf16"), ("int8", "int8")]


def score(
    dataset: str, forward: str, backward: str, seed: int, output: str, types: str
) -> tuple[float, float]:
    """(AUC, log loss) on test."""
    overrides = [
        "experiment=kaggle_small",
        "model.ensemble_size=1",
        f"data.path={dataset}",
        f"output={output}",
        f"trainer.seed={seed}",
        f"sharding.types=[{types}]",
        f"sharding.collectives={{forward:{forward},backward:{backward}}}",
        "report.enabled=false",
    ]
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
        test = train(compose_config("train", TrainConfig, overrides)).evals["test"].metrics
    return test["auc"], test["logloss"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dataset")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--types", default="table_wise")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    is_first = os.environ.get("RANK", "0") == "0"
    table, exact = [], None
    scratch = Path(tempfile.gettempdir()) / f"collectives-{os.environ.get('TORCHELASTIC_RUN_ID', '')}"
    for forward, backward in SETTINGS:
        outputs = [str(scratch / f"{forward}-{backward}-{seed}") for seed in range(options.seeds)]
        scores = np.array(
            [
                score(options.dataset, forward, backward, seed, output, options.types)
                for seed, output in enumerate(outputs)
            ]
        )
        exact = scores if exact is None else exact
        auc, difference = scores[:, 0], scores[:, 0] - exact[:, 0]
        largest = difference[np.abs(difference).argmax()]
        cells = [f"{auc.mean():.5f} ± {auc.std():.5f}", f"{difference.mean():+.5f}", f"{largest:+.5f}"]
        table.append([forward, backward, *cells, f"{scores[:, 1].mean():.5f}"])
        if is_first:
            print(*table[-1], sep="  ", flush=True)
    if is_first:
        headings = ["forward", "backward", "AUC", "mean difference", "largest", "log loss"]
        print(f"\n{text_table(headings, table)}\nruns: {scratch}")


if __name__ == "__main__":
    main()
    leave(0)
