"""Do dlrm-train and facebookresearch/dlrm's dlrm_main.py learn the same from the same rows, recipe and first weights?

    python benchmarks/accuracy.py sample.tsv --dlrm DLRM --seeds 3 --epochs 2

``sample.tsv``: lines of Criteo's train.txt; the last fifth are val and test. Both train DLRM with full Adagrad on the rows
as they stand in the file, from the weights that dlrm-train would begin with, which differ by seed. dlrm_main.py has the rows as
the days 0 to 22 that it trains on, and day 23, half of which is its val and half its test. Prints each AUC, and the differences.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
import yaml
from numpy.typing import NDArray
from train import numbers, own_environment, peer_environment
from train_models import Shapes

from dlrm_app.config.compose import compose_config
from dlrm_app.config.train import TrainConfig
from dlrm_app.dataset.manifest import Manifest, read_manifest
from dlrm_app.model.build import build_model
from dlrm_app.model.initial_weights import init_tables
from dlrm_app.table import text_table
from dlrm_app.tables.specs import resolve_tables
from dlrm_app.training.setup import begin_at_base_rate

SHARE = 0.1
"""Of the rows, each of val and test."""
SHAPES = Shapes([10_000] * 26, 16, (128, 64, 16), (128, 64, 1))
TRAIN_DAYS = 23
SPLITS = ("val", "test")


@dataclass(frozen=True)
class Recipe:
    """What both are told; the rows are ``folder``/dataset, and dlrm_main.py's days beside it."""

    folder: Path
    batch_size: int
    epochs: int
    lr: float

    def train_keys(self, seed: int) -> list[str]:
        """dlrm-train's. One lane, not shuffled, is the order of the file."""
        lists = [f"model.bottom_mlp={list(SHAPES.bottom)}", f"model.top_mlp={list(SHAPES.top)}"]
        return [
            *(f"data.path={self.folder / 'dataset'}", "data.shuffle=false", "data.lanes=1"),
            *(f"tables={self.folder / 'tables.yaml'}", *(each.replace(" ", "") for each in lists)),
            *("optimizer=adagrad", f"optimizer.sparse.lr={self.lr}", f"optimizer.dense.lr={self.lr}"),
            *(f"trainer.global_batch_size={self.batch_size}", f"trainer.epochs={self.epochs}"),
            *(f"trainer.seed={seed}", f"output={self.folder / f'run-{seed}'}", "report.enabled=false"),
        ]

    def peer_arguments(self) -> list[str]:
        """dlrm_main.py's."""
        return [
            *("--num_embeddings_per_feature", numbers(SHAPES.rows), "--embedding_dim", f"{SHAPES.dim}"),
            *("--dense_arch_layer_sizes", numbers(SHAPES.bottom)),
            *("--over_arch_layer_sizes", numbers(SHAPES.top)),
            *("--in_memory_binary_criteo_path", str(self.folder), "--drop_last_training_batch"),
            *("--batch_size", f"{self.batch_size}", "--epochs", f"{self.epochs}"),
            *("--adagrad", "--learning_rate", f"{self.lr}"),
        ]


# the rows


def write_rows(sample: Path, recipe: Recipe) -> None:
    """The rows for both: val and test are as long, for dlrm_main.py halves a day."""
    lines = sample.read_text().splitlines(keepends=True)
    size = int(len(lines) * SHARE)
    rows_of = {"train": lines[: -2 * size], "val": lines[-2 * size : -size], "test": lines[-size:]}
    for split, rows in rows_of.items():
        (recipe.folder / f"{split}.tsv").write_text("".join(rows))
    inputs = [f"input.{split}={recipe.folder / f'{split}.tsv'}" for split in rows_of]
    table_rows = f"encoding.num_embeddings={max(SHAPES.rows)}"
    call("preprocess", ["dataset=criteo_kaggle", *inputs, table_rows, f"output={recipe.folder / 'dataset'}"])
    manifest = read_manifest(recipe.folder / "dataset")
    for part, values in split_arrays(manifest, "train").items():
        last = np.concatenate([split_arrays(manifest, split)[part] for split in SPLITS])
        days = [*np.array_split(values, TRAIN_DAYS), last]
        for day, values_of_day in enumerate(days):
            np.save(recipe.folder / f"day_{day}_{part}.npy", values_of_day)
    specs = [
        {"name": f"t_cat_{index}", "rows": height, "dim": SHAPES.dim, "features": [f"cat_{index}"]}
        for index, height in enumerate(SHAPES.rows)
    ]
    (recipe.folder / "tables.yaml").write_text(yaml.safe_dump({"specs": specs}))
    shapes = {**asdict(SHAPES), "ids": SHAPES.ids_per_feature}
    (recipe.folder / "shapes.json").write_text(json.dumps(shapes))


def split_arrays(manifest: Manifest, split: str) -> dict[str, NDArray[np.generic]]:
    """A split as the three arrays of dlrm_main.py's files."""
    table = pq.read_table([manifest.folder / shard.path for shard in manifest.splits[split].shards])
    parts = {
        "dense": ([column.name for column in manifest.dense], np.float32),
        "sparse": ([f"cat_{index}" for index in range(len(SHAPES.rows))], np.int32),
        "labels": ([str(manifest.label)], np.int32),
    }
    return {
        part: np.stack([table[name].to_numpy().astype(kind) for name in names], axis=1)
        for part, (names, kind) in parts.items()
    }


# both trainers


def train_ours(recipe: Recipe, seed: int) -> dict[str, float]:
    """Split → AUC."""
    call("train", recipe.train_keys(seed))
    result = json.loads((recipe.folder / f"run-{seed}" / "result.json").read_text())
    return {split: result["evals"][split]["auc"] for split in SPLITS}


def train_peer(recipe: Recipe, seed: int, dlrm: Path) -> dict[str, float]:
    """Split → AUC, of dlrm_main.py from dlrm-train's initial weights."""
    write_initial_weights(recipe, seed)
    script, runner = dlrm / "torchrec_dlrm" / "dlrm_main.py", Path(__file__).with_name("train_peers.py")
    command = [sys.executable, str(runner), str(script), str(recipe.folder), *recipe.peer_arguments()]
    printed = run(command, peer_environment())
    found = {split: re.findall(rf"AUROC over {split} set: ([\d.]+)\.\n", printed) for split in SPLITS}
    return {split: float(values[-1]) for split, values in found.items()}


def write_initial_weights(recipe: Recipe, seed: int) -> None:
    """Those that dlrm-train begins with, under dlrm_main.py's names; train_peers.py loads them."""
    config = compose_config("train", TrainConfig, recipe.train_keys(seed))
    manifest = read_manifest(recipe.folder / "dataset")
    tables = resolve_tables(config.tables, None)
    model = build_model(config.model, tables, len(manifest.dense), torch.device("cpu"), seed)
    model.get_submodule("sparse_arch").to_empty(device="cpu")
    init_tables(model, tables, seed)
    begin_at_base_rate(model, config, manifest)
    weights = {f"model.{name}": weight for name, weight in model.state_dict().items()}
    torch.save(weights, recipe.folder / "initial.pt")


def call(name: str, keys: list[str]) -> None:
    """The command dlrm-``name``."""
    run([sys.executable, "-m", f"dlrm_app.cli.{name}", *keys], own_environment())


def run(command: list[str], environment: dict[str, str]) -> str:
    """What ``command`` prints; ends the program if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sample", type=Path)
    parser.add_argument("--dlrm", type=Path, required=True, help="a checkout of facebookresearch/dlrm")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--lr", type=float, default=0.02)
    options = parser.parse_args()
    table = []
    with tempfile.TemporaryDirectory(prefix="accuracy-benchmark-") as temporary:
        recipe = Recipe(Path(temporary), options.batch_size, options.epochs, options.lr)
        write_rows(options.sample.resolve(), recipe)
        for seed in range(options.seeds):
            ours, theirs = train_ours(recipe, seed), train_peer(recipe, seed, options.dlrm.resolve())
            for split in SPLITS:
                difference = ours[split] - theirs[split]
                table.append(
                    [f"{seed}", split, f"{ours[split]:.6f}", f"{theirs[split]:.6f}", f"{difference:+.6f}"]
                )
                print(*table[-1], sep="  ", flush=True)
    print(f"\n{text_table(['seed', 'split', 'dlrm-train, AUC', 'dlrm_main.py, AUC', 'difference'], table)}")
    for name, column in (("dlrm-train", 2), ("dlrm_main.py", 3)):
        scores = [float(row[column]) for row in table if row[1] == "test"]
        spread = statistics.stdev(scores) if len(scores) > 1 else 0.0
        print(f"{name}, test: {statistics.mean(scores):.5f} ± {spread:.5f} over seeds")


if __name__ == "__main__":
    main()
