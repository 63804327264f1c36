"""Tables may have any name, also those of attributes of the module in which torch keeps them."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from torch import nn

from dlrm_app.api.functions import load
from dlrm_app.config.export import ExportConfig
from dlrm_app.config.predict import PredictConfig
from dlrm_app.inference.export import export_model
from dlrm_app.inference.predict.predict import predict
from dlrm_app.tables.bags import torch_name
from dlrm_app.tables.table import table_of
from tests.composed import compose_config
from tests.loader.dataset_fixture import write_dataset
from tests.small_run import evaluate_here, final_bytes, losses, train_here

NAMES = ["items", "keys", "type", "train__"]
FEATURES = ["c0", "c1", "m0", "c2"]


@pytest.mark.parametrize(
    "name", [*NAMES, "values", "train", "training", "add_module", "t_item", "a__b", "x____"]
)
def test_torchs_name_is_free_and_leads_back(name: str) -> None:
    nn.ModuleDict({torch_name(name): nn.Identity()})
    assert table_of(f"sparse_arch.embedding_bags.{torch_name(name)}.weight") == name


@pytest.mark.slow
def test_a_run_with_such_tables_resumes_exports_and_predicts(tmp_path: Path) -> None:
    data = tmp_path / "data"
    write_dataset(data, rows={"train": 1280, "val": 256}, one_hot=(50, 1000, 20))
    specs = ",".join(
        f"{{name:{name},rows:1000,dim:8,features:[{feature}]}}"
        for name, feature in zip(NAMES, FEATURES, strict=True)
    )
    given = [f"data.path={data}", "tables.from_dataset=false", f"tables.specs=[{specs}]"]
    train_here(tmp_path / "whole", *given)
    train_here(tmp_path / "run", *given, "trainer.max_steps=4")
    train_here(tmp_path / "run", *given, "resume=auto")
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")
    assert final_bytes(tmp_path / "run") == final_bytes(tmp_path / "whole")
    assert set(yaml.safe_load((tmp_path / "run/plan.yaml").read_text())["tables"]) == set(NAMES)
    words = [f"checkpoint={tmp_path}/run", f"output={tmp_path}/export", "format=[torchscript,parquet]"]
    export_model(
        compose_config("export", ExportConfig, [*words, "quantize=fp16", "threads=1", "max_auc_loss=1"])
    )
    for model in ("run", "export"):
        scores = [
            f"model={tmp_path}/{model}",
            f"data.path={data}",
            "split=val",
            f"output={tmp_path}/{model}.parquet",
        ]
        predict(compose_config("predict", PredictConfig, [*scores, "threads=1"]))
    by_run, by_export = (
        pq.read_table(tmp_path / f"{name}.parquet")["score"].to_numpy() for name in ("run", "export")
    )
    np.testing.assert_allclose(by_run, by_export, atol=1e-3)
    assert evaluate_here(f"checkpoint={tmp_path}/run", "split=val").models[0].metrics["num_samples"] == 256
    assert load(tmp_path / "run").module is not None
