"""Running dlrm-preprocess inside a test, and reading back what it made."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dlrm_app.config.compose import compose_config
from dlrm_app.config.datasets import PreprocessConfig
from dlrm_app.dataset.manifest import Manifest
from dlrm_app.errors import refuse_if
from dlrm_app.preprocess.preprocess import preprocess
from dlrm_app.preprocess.read.spec import Spec, read_spec

CRITEO = Path(__file__).resolve().parents[2].parent / "shared" / "criteo"
NO_CRITEO = "the real Criteo rows are not on this machine"


def configure(*overrides: str) -> PreprocessConfig:
    config = compose_config("preprocess", PreprocessConfig, list(overrides))
    refuse_if(config.problems())
    return config


def run(output: Path, *overrides: str) -> Manifest:
    """Runs ``dlrm-preprocess *overrides output=OUTPUT``."""
    return preprocess(configure(*overrides, f"output={output}"))


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
