"""Training speed beside FuxiCTR's own: python benchmarks/train_fuxictr.py CHECKOUT [--models finalnet …]

    git clone https://github.com/reczoo/FuxiCTR && pip install h5py keras_preprocessing
    git clone https://github.com/salmon1802/DCNv3 FuxiCTR/model_zoo/DCNv3
    python benchmarks/train_fuxictr.py FuxiCTR

The same model on the same generated rows: 26 columns with the cardinalities of Criteo Kaggle, those above ``--most`` cut
(250,000: 1.8 million table rows in all, of width 16; 12_000_000 cuts none: 34 million), and 13 numbers. Here with
row-wise Adagrad and with Adam on the tables; there with Adam, whose optimizer goes over whole tables. Prints training
rows a CPU second, of one thread: what ``--rounds`` measurements of the second number of ``--steps`` take beyond as many
of the first, in turns, each in a process of its own; evaluations and start are left out. ``steps alone``: batches of FuxiCTR are
ready in memory; otherwise its NpzDataLoader makes them.
"""

import argparse
import inspect
import os
import sys
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from architectures import peak_memory
from train_models import KAGGLE_ROWS, Shapes

import dlrm_app as dlrm
from dlrm_app.table import text_table

_BLOCKS = {
    f"block{n}_hidden_{key}": value
    for n in (1, 2)
    for key, value in (("units", [400, 400]), ("activations", "ReLU"))
}
THERE: dict[str, tuple[str, dict[str, object]]] = {
    "finalnet": (
        "FinalNet.src.FinalNet:FinalNet",
        {**_BLOCKS, "use_feature_gating": True, "block1_dropout": 0.1, "residual_type": "sum"},
    ),
    "gdcn": ("GDCN.src.GDCN:GDCN", {"dnn_hidden_units": [512, 256]}),
    "dcn_parallel": ("DCNv2.src.DCNv2:DCNv2", {"parallel_dnn_hidden_units": [500, 500, 500]}),
    "dcnv3": (
        "DCNv3.src.DCNv3:DCNv3",
        {
            "num_deep_cross_layers": 4,
            "num_shallow_cross_layers": 5,
            "deep_net_dropout": 0.1,
            "shallow_net_dropout": 0.2,
        },
    ),
    "qnn": ("QNN.src.QNN_alpha:QNN_alpha", {"num_layers": 4, "num_row": 5, "net_dropout": 0.1}),
}
"""What conf/model/NAME.yaml is there: class below model_zoo, and arguments."""
Measured = tuple[float, float]  # training rows a CPU second, peak MiB


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--models", nargs="+", default=[*THERE])
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--most", type=int, default=250_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, nargs=2, default=(2, 8))
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as scratch:
        folder, batch, steps = Path(scratch), options.batch, tuple(options.steps)
        shapes = Shapes([min(rows, options.most) for rows in KAGGLE_ROWS], 16, (), ())
        shapes.write_rows(folder, batch * steps[1])
        arguments = options.checkout.absolute(), shapes, folder, batch, steps
        rows = []
        for name in options.models:
            ways: dict[str, Callable[[], Measured]] = {
                "row-wise Adagrad": lambda name=name: alone(
                    here, folder, name, "rowwise_adagrad", batch, steps
                ),
                "Adam": lambda name=name: alone(here, folder, name, "adam", batch, steps),
                "FuxiCTR, Adam": lambda name=name: alone(there, *arguments, name, False),
                "FuxiCTR, steps alone": lambda name=name: alone(there, *arguments, name, True),
            }
            each = [{way: measure() for way, measure in ways.items()} for _ in range(options.rounds)]
            for way in ways:
                speeds = [of_round[way][0] for of_round in each]
                peak = max(of_round[way][1] for of_round in each)
                spread = f"{min(speeds):,.0f} to {max(speeds):,.0f}"
                rows.append([name, way, f"{np.median(speeds):,.0f}", spread, f"{peak:,.0f}"])
                print(*rows[-1], file=sys.stderr, flush=True)
    print(text_table(["model", "", "rows a CPU second", "of all rounds", "peak MiB"], rows))


def alone(measure: Callable[..., Measured], *arguments: object) -> Measured:
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(measure, *arguments).result()


def rate(train: Callable[[int], Any], batch: int, steps: tuple[int, int]) -> Measured:
    """Rows a CPU second of ``train``, and this process's peak memory."""
    seconds = []
    for number in steps:
        start = time.process_time()
        train(number)
        seconds.append(time.process_time() - start)
    return (steps[1] - steps[0]) * batch / (seconds[1] - seconds[0]), peak_memory()


def here(folder: Path, name: str, optimizer: str, batch: int, steps: tuple[int, int]) -> Measured:
    settings = {
        "data.path": folder / "dataset",
        "tables": folder / "tables.yaml",
        "model": name,
    }
    settings |= {
        "experiment": None,
        "optimizer": optimizer,
        "optimizer.dense.kind": "adam",
        "optimizer.dense.lr": 0.001,
    }
    settings |= {"trainer.global_batch_size": batch, "trainer.threads": 1, "report.enabled": False}

    def train(steps: int) -> None:
        with tempfile.TemporaryDirectory() as output:
            dlrm.train({**settings, "trainer.max_steps": steps, "output": f"{output}/run"})

    train(1)  # compiles
    return rate(train, batch, steps)


def there(
    checkout: Path,
    shapes: Shapes,
    folder: Path,
    batch: int,
    steps: tuple[int, int],
    name: str,
    steps_alone: bool,
) -> Measured:
    sys.path[:0] = [str(checkout), str(checkout / "model_zoo")]
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    features = describe_rows(shapes, folder)
    write_arrays(folder, features.features)
    place, arguments = THERE[name]
    module, _, kind = place.partition(":")
    common = {
        "optimizer": "adam",
        "loss": "binary_crossentropy",
        "task": "binary_classification",
        "metrics": ["AUC"],
    }
    common |= {"embedding_dim": shapes.dim, "model_root": str(folder), "verbose": 0}
    if name == "qnn":
        import_module(module).FeatureEmbedding = flattening(import_module(module).FeatureEmbedding)
    model = driven(getattr(import_module(module), kind))(features, **common, **arguments)
    model._max_gradient_norm, model._eval_steps, model._total_steps, model._stop_training = (
        10.0,
        1 << 30,
        0,
        False,
    )
    loaders = import_module("fuxictr.pytorch.dataloaders.npz_dataloader")
    loader = loaders.NpzDataLoader(
        features, str(folder / "rows.npz"), batch_size=batch, shuffle=True, num_workers=0
    )
    batches = [*loader] if steps_alone else []

    def train(steps: int) -> None:
        found = iter(batches or loader)
        model.train_epoch(next(found) for _ in range(steps))

    return rate(train, batch, steps)


def describe_rows(shapes: Shapes, folder: Path) -> Any:
    """FuxiCTR's description of the columns."""
    features = import_module("fuxictr.features").FeatureMap("rows", str(folder))
    numbers = [f"num_{n}" for n in range(shapes.num_dense)]
    columns = {key: {"type": "numeric", "source": ""} for key in numbers}
    columns |= {
        f"cat_{n}": {"type": "categorical", "source": "", "vocab_size": rows}
        for n, rows in enumerate(shapes.rows)
    }
    features.features, features.labels, features.default_emb_dim = OrderedDict(columns), ["label"], shapes.dim
    features.num_fields = features.get_num_fields()
    features.set_column_index()
    return features


def flattening(kind: type) -> type:
    """FuxiCTR's embeddings under the keyword that they had when ``qnn`` was written."""

    class Flattening(kind):
        def forward(self, inputs: dict[str, Any], dynamic_emb_dim: bool) -> Any:
            return super().forward(inputs, flatten_emb=dynamic_emb_dim)

    return Flattening


def driven(kind: type) -> type:
    """``kind``, whose step is as FuxiCTR had it while losses read the batch, if it was written for that."""
    if "inputs" not in inspect.signature(kind.add_loss).parameters:
        return kind

    class Driven(kind):
        def train_step(self, batch: dict[str, Any]) -> Any:
            from torch.nn.utils import clip_grad_norm_

            self.optimizer.zero_grad()
            loss = self.add_loss(batch) + self.regularization_loss()
            loss.backward()
            clip_grad_norm_(self.parameters(), self._max_gradient_norm)
            self.optimizer.step()
            return loss

    return Driven


def write_arrays(folder: Path, columns: dict[str, Any]) -> None:
    """FOLDER/rows.npz: the training rows by column, which their loader reads."""
    if not (folder / "rows.npz").exists():
        shards = sorted((folder / "dataset/train").glob("*.parquet"))
        table = pa.concat_tables([pq.read_table(shard) for shard in shards])
        np.savez(folder / "rows.npz", **{key: table[key].to_numpy() for key in [*columns, "label"]})


if __name__ == "__main__":
    main()
