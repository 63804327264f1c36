"""FuxiCTR's DLRM from a checkout, trained by its own fit() on random batches; what train.py runs.

    python benchmarks/train_fuxictr.py CHECKOUT FOLDER

FOLDER/shapes.json says what model, how many steps of how many rows; the times at which steps end go to
FOLDER/times.json. NUM_BATCHES batches are drawn before the first step and taken in turn. Adagrad as torch has it, for all
weights: FuxiCTR's embeddings have gradients as large as the tables. Nothing is evaluated or saved.
"""

import itertools
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

NUM_BATCHES = 8
Columns = dict[str, torch.Tensor]


class RandomBatches:
    """``steps`` batches by column, as FuxiCTR's loaders give them."""

    def __init__(self, shapes: dict[str, Any]) -> None:
        self.steps = shapes["steps"]
        self.drawn = [self.draw(shapes) for _ in range(NUM_BATCHES)]

    @staticmethod
    def draw(shapes: dict[str, Any]) -> Columns:
        batch = shapes["batch_size"]
        columns: Columns = {f"int_{index}": torch.rand(batch, 1) for index in range(shapes["num_dense"])}
        columns |= {
            f"cat_{index}": torch.randint(rows, (batch,)) for index, rows in enumerate(shapes["rows"])
        }
        return columns | {"label": torch.randint(2, (batch,)).float()}

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[Columns]:
        return itertools.islice(itertools.cycle(self.drawn), self.steps)


def build(shapes: dict[str, Any], folder: Path) -> Any:
    """The model, compiled as FuxiCTR calls it."""
    from fuxictr.features import FeatureMap
    from model_zoo.DLRM.src.DLRM import DLRM

    features = FeatureMap("random", str(folder))
    features.labels = ["label"]
    features.features.update(
        (f"cat_{index}", {"type": "categorical", "source": "", "vocab_size": rows})
        for index, rows in enumerate(shapes["rows"])
    )
    features.features.update(
        (f"int_{index}", {"type": "numeric", "source": ""}) for index in range(shapes["num_dense"])
    )
    features.num_fields = features.get_num_fields()
    *bottom, dim = shapes["bottom"]
    return DLRM(
        features,
        embedding_dim=dim,
        bottom_mlp_units=bottom,
        top_mlp_units=shapes["top"][:-1],
        optimizer="Adagrad",
        loss="binary_crossentropy",
        learning_rate=0.005,
        metrics=["AUC"],
        model_root=str(folder),
        verbose=0,
        eval_steps=10**9,
    )


def main() -> None:
    checkout, folder = Path(sys.argv[1]), Path(sys.argv[2])
    sys.path.insert(0, str(checkout))
    shapes = json.loads((folder / "shapes.json").read_text())
    model = build(shapes, folder)
    model.load_weights = lambda path: None  # fit ends with the best weights that it saved
    ended: list[float] = []
    model.optimizer.register_step_post_hook(lambda *_: ended.append(time.time()))
    model.fit(RandomBatches(shapes))
    (folder / "times.json").write_text(json.dumps(ended))


if __name__ == "__main__":
    main()
