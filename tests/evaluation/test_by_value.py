"""Metrics by the values of a column: those of the rows with a value alone, by raw names, on any number of ranks."""

from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from sklearn.metrics import log_loss, roc_auc_score

from dlrm_app.dataset.manifest import read_manifest
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.errors import ConfigError
from dlrm_app.evaluation.by_value import MISSING, OTHERS, RARE, group_by_value, measure_by_value
from dlrm_app.evaluation.result import ValueResult
from tests.make_log import write_csv
from tests.preprocessing.clicks import make_clicks
from tests.preprocessing.running import run as preprocess_here
from tests.preprocessing.running import table_of
from tests.ranks import on_ranks
from tests.refusals import refused
from tests.scored import scored
from tests.small_run import evaluate_here
from tests.weighted_log import describe, draw_rows

ROWS = 6000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset with vocabularies, and one with hashes that keeps the shops and devices; scores of both."""
    path = tmp_path_factory.mktemp("by")
    describe(path)
    rows, chances = draw_rows(ROWS)
    shops = [None if number % 50 == 0 else shop for number, shop in enumerate(rows["shop"].to_pylist())]
    shops[3] = 777
    rows = rows.set_column(3, "shop", pa.array(shops))
    write_csv(path / "log.csv", rows)
    given = [f"dataset={path}/log.yaml", f"input.test={path}/log.csv", "layout.row_group_rows=700"]
    given += ["dense.bucket_columns=[age]", "dense.bucket_boundaries=[30,50]"]
    vocab = ["encoding=vocab", "encoding.min_count=2"]
    preprocess_here(path / "vocab", *given, *vocab)
    preprocess_here(path / "hash", *given, "encoding.num_embeddings=1000", "keep=[shop,device]")
    preprocess_here(path / "bare", *given, "encoding.num_embeddings=1000")
    pq.write_table(pa.table({"score": chances}), path / "scores.parquet")
    return path


def evaluated(folder: Path, data: str, *by: str) -> list[ValueResult]:
    words = [f"data.path={folder}/{data}", f"scores=[{folder}/scores.parquet]", f"by=[{','.join(by)}]"]
    return evaluate_here(*words).models[0].by


def raw(folder: Path) -> tuple[list[str], np.ndarray, np.ndarray, np.ndarray]:
    """(shops as text, clicks, scores, weights) of the log, read as any program would."""
    lines = [line.split(",") for line in (folder / "log.csv").read_text().splitlines()[1:]]
    clicks, weights = (np.array([float(line[column]) for line in lines]) for column in (0, 1))
    scores = pq.read_table(folder / "scores.parquet")["score"].to_numpy()
    return [line[3] or MISSING for line in lines], clicks, scores, weights.astype(np.float32)


@pytest.mark.slow
@pytest.mark.parametrize("data", ["vocab", "hash"])
def test_each_value_has_the_metrics_of_its_rows(folder: Path, data: str) -> None:
    """The 20 most frequent ones by their raw names, whatever the encoding, and the others together."""
    shops, clicks, scores, weights = raw(folder)
    if data == "vocab":
        shops = [RARE if shop == "777" else shop for shop in shops]
    found = evaluated(folder, data, "shop")
    counts = Counter(shops)
    assert [each.rows for each in found[:20]] == sorted(counts.values(), reverse=True)[:20]
    assert found[20].value == OTHERS
    assert sum(each.rows for each in found) == ROWS
    listed = {each.value for each in found[:20]}
    names = np.array([shop if shop in listed else OTHERS for shop in shops])
    for each in found:
        own = names == each.value
        assert (each.rows, each.clicks) == (own.sum(), clicks[own].sum())
        given = {"sample_weight": weights[own]}
        logits = np.log(scores / (1 - scores)).astype(np.float32)[own]  # as precise as models' are
        assert each.auc.value == pytest.approx(roc_auc_score(clicks[own], logits, **given), rel=1e-9)
        assert each.logloss == pytest.approx(log_loss(clicks[own], scores[own], **given), rel=1e-5)
        ratio = (weights * scores)[own].sum() / (weights * clicks)[own].sum()
        assert each.calibration == pytest.approx(ratio, rel=1e-5)
        assert each.auc.low < each.auc.value < each.auc.high


def test_texts_and_buckets_and_ids_have_names(folder: Path) -> None:
    assert {each.value for each in evaluated(folder, "vocab", "device")} == {"phone", "tablet", "desk"}
    buckets = {each.value for each in evaluated(folder, "vocab", "age_bucket")}
    assert buckets == {"below 30", "30 to 50", "from 50"}
    assert all(each.value.startswith("#") for each in evaluated(folder, "hash", "device"))
    names = {each.value for each in evaluated(folder, "bare", "device")}
    assert len(names) == 3
    assert all(name.startswith("id ") for name in names)


def test_several_columns_come_one_after_another(folder: Path) -> None:
    words = [f"data.path={folder}/vocab", f"scores=[{folder}/scores.parquet]", "by=[device,age_bucket]"]
    result = evaluate_here(*words)
    assert [each.column for each in result.models[0].by] == ["device"] * 3 + ["age_bucket"] * 3
    shown = [str(each) for each in result.paragraphs()]
    assert {"by device:", "by age_bucket:"} <= {*shown}


def on_rank(folder: Path, runtime: Runtime) -> list[ValueResult]:
    manifest = read_manifest(folder / "vocab")
    rows = slice(*(part * ROWS // runtime.world_size for part in (runtime.rank, runtime.rank + 1)))
    scores = torch.from_numpy(pq.read_table(folder / "scores.parquet")["score"].to_numpy()[rows])
    labels = torch.from_numpy(table_of(manifest, "test")["clicked"].to_numpy()[rows]) == 1
    weights = torch.from_numpy(table_of(manifest, "test")["importance"].to_numpy()[rows])
    groups = group_by_value(manifest, "test", "shop", runtime)
    return measure_by_value(groups, scored(torch.logit(scores).float(), labels, weights), 0.95)


@pytest.mark.slow
def test_ranks_measure_the_same_as_one(folder: Path) -> None:
    (alone,) = on_ranks(partial(on_rank, folder), 1)
    by_rank = on_ranks(partial(on_rank, folder), 3)
    assert by_rank[0] == by_rank[1] == by_rank[2]
    for one, three in zip(alone, by_rank[0], strict=True):
        assert (one.value, one.rows, one.clicks) == (three.value, three.rows, three.clicks)
        assert (three.auc.value, three.logloss) == pytest.approx((one.auc.value, one.logloss), rel=1e-9)


def test_columns_without_values_are_refused(folder: Path) -> None:
    from dlrm_app.config.evaluate import EvaluateConfig
    from dlrm_app.evaluation.problems import check_paths
    from tests.composed import compose_config

    def check(*words: str) -> None:
        scores = f"scores=[{folder}/scores.parquet]"
        check_paths(compose_config("evaluate", EvaluateConfig, [scores, *words]), is_first=True)

    with refused(
        ConfigError, "by=country", "is neither a one-hot feature of ... nor a column that it keeps (keep=)"
    ):
        check(f"data.path={folder}/vocab", "by=[country]")
    with refused(ConfigError, "by", "names columns of a dataset"):
        check("by=[shop]")
    with refused(ConfigError, "by", "names shop twice"):
        check(f"data.path={folder}/vocab", "by=[shop,shop]")


@pytest.mark.parametrize("data", ["vocab", "hash"])
def test_hex_values_have_their_digits(tmp_path: Path, data: str) -> None:
    text = make_clicks(500)
    (tmp_path / "clicks.tsv").write_bytes(text)
    kind = ["encoding=vocab", "encoding.min_count=1"] if data == "vocab" else ["encoding.num_embeddings=100"]
    given = ["dataset=criteo_kaggle", f"input.test={tmp_path}/clicks.tsv", "keep=[cat_2]"]
    preprocess_here(tmp_path / "out", *given, *kind)
    count = len(table_of(read_manifest(tmp_path / "out"), "test"))
    pq.write_table(pa.table({"score": np.full(count, 0.5)}), tmp_path / "scores.parquet")
    words = [f"data.path={tmp_path}/out", f"scores=[{tmp_path}/scores.parquet]", "by=[cat_2]"]
    fields = [line.split("\t")[16] for line in text.decode().splitlines() if line.count("\t") == 39]
    raw = {f"{int(field, 16):08x}" for field in fields if field}
    found = {each.value for each in evaluate_here(*words).models[0].by}
    assert found - {MISSING, OTHERS} <= raw
    assert len(found) > 3
