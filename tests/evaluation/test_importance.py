"""The importance of features is what its definition says, computed here the slow way."""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from dlrm_app.config.compose import compose_config
from dlrm_app.config.scoring import EvaluateConfig
from dlrm_app.dataset.arrow import Bags
from dlrm_app.dataset.manifest import read_manifest
from dlrm_app.distributed.runtime import start_runtime
from dlrm_app.evaluation.evaluate_checkpoints import evaluate_checkpoints
from dlrm_app.evaluation.importance import over_repeats, sample_rows
from dlrm_app.evaluation.result import Importance, Interval
from dlrm_app.inference.scoring_model import build_scoring_model
from dlrm_app.inference.tables import table_types
from dlrm_app.kernels.install import install
from dlrm_app.loader.batch_order import COLUMN_ORDER, permutation
from dlrm_app.loader.reader import SplitReader, TableReader
from dlrm_app.loader.rows import Columns
from dlrm_app.runs.checkpoint.load import open_trained
from tests.commands import command, succeed
from tests.loader.dataset_fixture import write_dataset
from tests.small_run import train_here

ROWS, REPEATS, SEED = 701, 2, 5
STRIDE = 3
TABLES = """
embedding_dim: 8
specs:
  - {name: t_c0, rows: 50, features: [c0]}
  - {name: t_c1, rows: 1000, features: [c1]}
  - {name: t_bags, rows: 30, features: [m0, m1], pooling: mean}
"""
Bag = list[int]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("importance")
    write_dataset(folder / "dataset", rows={"train": 2000, "val": 100, "test": ROWS}, multi_hot=(30, 30))
    (folder / "tables.yaml").write_text(TABLES)
    keys = [f"data.path={folder}/dataset", f"tables={folder}/tables.yaml", "trainer.global_batch_size=64"]
    train_here(folder / "run", *keys, "trainer.epochs=3", "optimizer.sparse.lr=0.3")
    return folder


def keys_of(folder: Path) -> list[str]:
    return [
        f"checkpoint={folder}/run",
        "threads=1",
        "importance=true",
        f"permutations.repeats={REPEATS}",
        f"permutations.rows={ROWS // STRIDE + 1}",
        f"permutations.seed={SEED}",
        "batch_size=64",
    ]


def evaluated(folder: Path, *overrides: str) -> Importance:
    config = compose_config("evaluate", EvaluateConfig, [*keys_of(folder), *overrides])
    importance = evaluate_checkpoints(config).models[0].importance
    assert importance is not None
    return importance


def bags_of(columns: Columns) -> list[list[Bag]]:
    """The ids of every feature and row."""
    return [
        [ids.values[a:b].tolist() for a, b in zip(ids.offsets, ids.offsets[1:], strict=False)]
        if isinstance(ids, Bags)
        else [[int(i)] for i in ids]
        for ids in columns.features
    ]


def test_every_feature_loses_what_its_definition_says(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    importance = evaluated(trained, f"output={trained}/result.json")
    assert f"{importance.features[0].auc_lost.value:+.5f}" in capsys.readouterr().out
    stored = json.loads((trained / "result.json").read_text())["models"][0]["importance"]
    assert stored == asdict(importance)
    manifest = read_manifest(trained / "dataset")
    with start_runtime(1) as runtime:
        model = open_trained(trained / "run", runtime)
        reader = SplitReader(manifest, "test", model.features)
        groups = [reader.decode(group) for group in range(len(reader.group_rows))]
    scoring = install(
        build_scoring_model(model, table_types(model.tables, "fp32", {})),
        torch.device("cpu"),
        "compiled",
    )
    dense = np.concatenate([rows.dense for rows in groups])[::STRIDE]
    labels = np.concatenate([rows.labels for rows in groups])[::STRIDE]
    bags = [
        [bag for bags in parts for bag in bags][::STRIDE]
        for parts in zip(*(bags_of(Columns([], rows.features, rows.labels)) for rows in groups), strict=True)
    ]

    def measure(dense: np.ndarray, bags: list[list[Bag]]) -> float:
        values = torch.tensor([i for feature in bags for bag in feature for i in bag], dtype=torch.int32)
        lengths = torch.tensor([[len(bag) for bag in feature] for feature in bags], dtype=torch.int32)
        with torch.no_grad():
            scores = scoring(torch.from_numpy(dense.copy()), values, lengths)[0].double().numpy()
        return float(roc_auc_score(labels, scores))

    auc = measure(dense, bags)
    names = [*(column.name for column in manifest.dense), *model.features]
    assert sorted(each.feature for each in importance.features) == sorted(names)
    assert importance.rows == len(labels)
    for each in importance.features:
        number = names.index(each.feature)
        lost = []
        for repeat in range(REPEATS):
            order = permutation(len(labels), SEED, repeat, COLUMN_ORDER, number)
            other_dense, other_bags = dense.copy(), list(bags)
            if number < dense.shape[1]:
                other_dense[:, number] = dense[order, number]
            else:
                feature = bags[number - dense.shape[1]]
                other_bags[number - dense.shape[1]] = [feature[i] for i in order]
            lost.append(auc - measure(other_dense, other_bags))
        assert each.auc_lost.value == pytest.approx(np.mean(lost), abs=2e-5), each.feature
    losses = [each.auc_lost.value for each in importance.features]
    assert losses == sorted(losses, reverse=True)
    assert losses[0] > 0.01


def test_a_sample_is_every_kth_row_of_the_split(trained: Path) -> None:
    manifest = read_manifest(trained / "dataset")
    reader = TableReader(manifest, ["m0", "c1"])
    every, third = (sample_rows(manifest, "test", reader, most) for most in (ROWS, ROWS // STRIDE + 1))
    assert len(every) == ROWS
    assert third.to_pylist() == every.to_pylist()[::STRIDE]
    assert sum(len(shard.row_groups) for shard in manifest.splits["test"].shards) > 1


def test_the_interval_has_the_error_of_the_rows_once_and_that_of_the_orders_divided() -> None:
    lost = [Interval(0.1, 0.03, 0, 0), Interval(0.3, 0.04, 0, 0)]
    interval = over_repeats(lost, confidence=0.95)
    error = ((0.03**2 + 0.04**2) / 2 + 0.02 / 2) ** 0.5
    assert (interval.value, interval.standard_error) == pytest.approx((0.2, error))
    assert (interval.low, interval.high) == pytest.approx((0.2 - 1.959964 * error, 0.2 + 1.959964 * error))


@pytest.mark.long
def test_two_ranks_find_what_one_finds(trained: Path) -> None:
    keys = keys_of(trained)
    succeed(command("evaluate", *keys, f"output={trained}/one.json"), trained)
    succeed(command("evaluate", *keys, f"output={trained}/two.json", ranks=2), trained)
    one, two = (
        json.loads((trained / name).read_text())["models"][0]["importance"]["features"]
        for name in ("one.json", "two.json")
    )
    assert [each["feature"] for each in one] == [each["feature"] for each in two]
    for a, b in zip(one, two, strict=True):
        assert a["auc_lost"] == pytest.approx(b["auc_lost"], abs=2e-5)
