"""A model with lists pooled by attention scores alike in every form: as trained, exported, quantized, an ensemble."""

from pathlib import Path

import pytest
import torch

from dlrm_app.dataset.manifest import read_manifest
from dlrm_app.distributed.runtime import start_runtime
from dlrm_app.inference.exported_model import open_export
from dlrm_app.inference.scoring_model import build_scoring_model, to_inputs, trained_module
from dlrm_app.inference.tables import table_types
from dlrm_app.loader.batch import EvalBatches
from dlrm_app.runs.checkpoint.load import open_trained
from tests.commands import MadeOnce
from tests.inference.conftest import LEARNS, export_here
from tests.loader.dataset_fixture import write_dataset
from tests.small_run import train_here

TABLES = """
embedding_dim: 8
specs:
  - {name: others, rows: 1000, features: [c1], pooling: mean}
  - {name: items, rows: 50, features: [m0, c0, m1], pooling: {attention: c0, softmax: SOFTMAX}}
"""


@pytest.fixture(scope="module", params=["plain", "ensemble"])
def run(request: pytest.FixtureRequest, made_once: MadeOnce) -> Path:
    """A folder with ``dataset`` and ``run``, whose table items has two lists around their target."""
    is_plain = request.param == "plain"

    def make(folder: Path) -> None:
        write_dataset(folder / "dataset", rows={"train": 1000, "val": 300, "test": 300}, multi_hot=(30, 30))
        (folder / "tables.yaml").write_text(TABLES.replace("SOFTMAX", str(is_plain).lower()))
        keys = [f"data.path={folder}/dataset", f"tables={folder}/tables.yaml"]
        train_here(folder / "run", *keys, *LEARNS, f"model.ensemble_size={1 if is_plain else 2}")

    return made_once(f"attentive-{request.param}", make)


@torch.no_grad()
def test_the_serving_model_gives_the_trained_models_logits(run: Path) -> None:
    """With rows of padding too, which have neither a target nor lists."""
    with start_runtime(num_threads=1) as runtime:
        trained = open_trained(run / "run", runtime)
    model = trained_module(trained)
    scoring = build_scoring_model(trained, table_types(trained.tables, "fp32", {}))
    with EvalBatches(read_manifest(run / "dataset"), "test", trained.features, batch_size=256) as batches:
        for batch in batches:
            expected = model(batch.dense_features, batch.sparse_features).squeeze(1)
            torch.testing.assert_close(scoring(*to_inputs(batch))[1], expected, rtol=1e-5, atol=1e-5)


def test_an_export_gives_them_in_int8_to_its_rounding(run: Path, tmp_path: Path) -> None:
    record = export_here(
        f"checkpoint={run}/run", "format=torchscript", "quantize=int8", f"output={tmp_path}/export"
    )
    (proof,) = record.proofs
    assert proof.max_difference < 0.02
    assert open_export(tmp_path / "export").features == ["c1", "m0", "c0", "m1"]


@pytest.mark.slow
@pytest.mark.parametrize("architecture", [pytest.param("stacked", marks=pytest.mark.long), "side by side"])
def test_shards_score_as_the_whole_tables(mixed: Path, architecture: str, tmp_path: Path) -> None:
    """With attention and with weights of elements, in TorchScript too."""
    run = mixed / "run"
    if architecture == "side by side":
        keys = [
            f"data.path={mixed}/data",
            f"tables={mixed}/tables.yaml",
            "model=concat",
            "model.bottom_mlp=[]",
        ]
        train_here(tmp_path / "concat", *keys, "trainer.max_steps=20", *LEARNS)
        run = tmp_path / "concat"
    with start_runtime(num_threads=1) as runtime:
        trained = open_trained(run, runtime)
    types = table_types(trained.tables, "int8", {})
    whole, sharded = (build_scoring_model(trained, types, num_shards) for num_shards in (1, 2))
    keys = ["format=torchscript", "quantize=int8", "max_auc_loss=1"]
    export_here(f"checkpoint={run}", *keys, "shards=2", f"output={tmp_path}/two")
    export = open_export(tmp_path / "two")
    manifest = read_manifest(mixed / "data")
    with torch.no_grad(), EvalBatches(manifest, "test", trained.features, batch_size=256) as batches:
        for batch in batches:
            inputs = to_inputs(batch)
            expected = whole(*inputs)[1]
            for found in (sharded(*inputs)[1], export.score(inputs)[1]):
                torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert export.record.shards == 2
