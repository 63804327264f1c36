"""Running dlrm-preprocess inside a test, and reading back what it made."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dlrm_app.config.datasets import PreprocessConfig
from dlrm_app.dataset.manifest import Manifest
from dlrm_app.errors import refuse_if
from dlrm_app.logs.read_spec import read_spec
from dlrm_app.logs.spec import Spec
from dlrm_app.preprocessing.preprocess import preprocess
from dlrm_app.preprocessing.summary import Dataset
from tests.composed import compose_config

CRITEO = Path(__file__).resolve().parents[2].parent / "shared" / "criteo"
NO_CRITEO = "the real Criteo rows are not on this machine"


BOUNDARIES = [0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256, 512, 1024, 4096, 16384, 65536]
PLAIN = {
    "encoding": "hash",
    "dense.transform": "log1p",
    "dense.bucket_columns": "null",
    "dense.bucket_boundaries": str(BOUNDARIES).replace(" ", ""),
    "dense.target_columns": "null",
    "encoding.crosses": "null",
}
"""What tests say nothing of, with nothing left to choose."""
AUTO = [f"{key}=auto" for key in PLAIN]


def configure(*overrides: str) -> PreprocessConfig:
    """The configuration of ``dlrm-preprocess *overrides``, PLAIN where these say nothing; a recipe says all."""
    typed = {each.partition("=")[0] for each in overrides}
    plain = [
        f"{key}={value}" for key, value in PLAIN.items() if key not in typed and "experiment" not in typed
    ]
    config = compose_config("preprocess", PreprocessConfig, [*plain, *overrides])
    refuse_if(config.problems())
    return config


def make(output: Path, *overrides: str) -> Dataset:
    """Runs ``dlrm-preprocess *overrides output=OUTPUT``."""
    return preprocess(configure(*overrides, f"output={output}"))


def run(output: Path, *overrides: str) -> Manifest:
    """The manifest that ``dlrm-preprocess *overrides output=OUTPUT`` writes."""
    return make(output, *overrides).manifest


def spec_of(dataset: str) -> Spec:
    return read_spec(configure(f"dataset={dataset}", "input.train=x", "output=x").dataset)


def table_of(manifest: Manifest, split: str = "train") -> pa.Table:
    """All rows of a split, read without the project's own reader."""
    assert manifest.path is not None
    return pa.concat_tables(
        [pq.ParquetFile(manifest.path / shard.path).read() for shard in manifest.splits[split].shards]
    )


def rejects_of(output: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (output / "rejects.jsonl").read_text().splitlines()]


def content(folder: Path, skip: Sequence[str] = ()) -> dict[str, bytes]:
    """Every file of a dataset folder with its bytes."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in skip
    }
