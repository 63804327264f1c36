"""Which column matters: shuffled columns of the dataset do what shuffled columns of the log would, on any number of ranks."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from sklearn.metrics import average_precision_score, log_loss, ndcg_score, roc_auc_score

import dlrm_app as dlrm
from dlrm_app.config.evaluate import EvaluateConfig
from dlrm_app.dataset.arrow import Bags
from dlrm_app.dataset.columns import columns_of_log
from dlrm_app.dataset.manifest import read_manifest
from dlrm_app.distributed.ranks import Ranks
from dlrm_app.errors import ConfigError
from dlrm_app.evaluation.importance import told_share
from dlrm_app.evaluation.importance_result import Importance
from dlrm_app.loader.batch import PLAIN
from dlrm_app.loader.batch_order import IMPORTANCE, permutation
from dlrm_app.loader.shuffled_rows import SampledRows, taken, whole_groups
from tests.composed import compose_config
from tests.make_log import make_log
from tests.preprocessing.running import run as preprocess_here
from tests.preprocessing.running import table_of
from tests.ranks import start_ranks
from tests.small_run import evaluate_here, train_here

ROWS, SHOPS = 40_000, 100
COLUMNS = [
    "{name: clicked, role: label}",
    "{name: age, role: dense, kind: float}",
    *(f"{{name: {name}, role: sparse, kind: integer}}" for name in ("shop", "twin", "user", "weak", "noise")),
    '{name: history, role: sparse, kind: integer, separator: "|"}',
    "{name: at, role: time, kind: seconds}",
    "{name: request, role: ignore, kind: integer}",
]
DERIVED = "derived: [{name: hour, kind: hour, of: at}, {name: shop_user, kind: cross, of: [shop, user]}]"


def draw() -> pa.Table:
    """Effects of known size: of shop (or its twin, another name of it), user, age, weak; none of noise and history."""
    random = np.random.default_rng(0)
    shop, user, weak, noise = random.integers(0, SHOPS, (4, ROWS))
    age, effects = random.normal(size=ROWS), random.normal(size=(3, SHOPS))
    logits = 1.2 * effects[0][shop] + 0.7 * effects[1][user] + 0.35 * age + 0.15 * effects[2][weak] - 1
    return pa.table(
        {
            "clicked": (random.random(ROWS) < 1 / (1 + np.exp(-logits))).astype(int),
            "age": age,
            "shop": shop,
            "twin": (shop * 7 + 3) % SHOPS,
            "user": user,
            "weak": weak,
            "noise": noise,
            "history": [random.integers(0, 50, size).tolist() for size in random.integers(0, 4, ROWS)],
            "at": random.integers(0, 86_400, ROWS),
            "request": random.integers(0, ROWS // 10, ROWS),
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset with buckets, click rates, a cross, an hour and requests, and a model."""
    path = tmp_path_factory.mktemp("importance")
    made = ["encoding=vocab", "dense.bucket_columns=all", "dense.target_columns=[shop,user,age_bucket]"]
    log = make_log(path, COLUMNS, draw(), DERIVED)
    preprocess_here(
        path / "data",
        *log,
        *made,
        "dense.transform=standardize",
        "split.test=0.3",
        "layout.row_group_rows=5000",
        "keep=[request]",
    )
    train_here(path / "run", f"data.path={path}/data", "trainer.epochs=2", "trainer.global_batch_size=256")
    return path


def importance_of(folder: Path, *words: str) -> Importance:
    found = evaluate_here(f"checkpoint={folder}/run", "split=test", *words).models[0].importance
    assert found is not None
    return found


@pytest.mark.slow
def test_known_effects_give_their_order(folder: Path) -> None:
    """A column of noise has 0 within its interval; two names of one thing are told, and matter most together."""
    found = importance_of(folder, "importance.repeats=3", "importance.rows=null")
    assert found.rows == ROWS * 0.3
    by_name = {each.column: each for each in found.columns}
    assert [each.column for each in found.columns] == sorted(by_name, key=lambda name: -by_name[name].fall)
    assert by_name["user"].fall > by_name["age"].fall > by_name["weak"].low > 0
    for name in ("noise", "history", "at"):
        assert by_name[name].low <= 0 <= by_name[name].high
    (pair,) = found.hiding_pairs()
    assert {*pair.columns} == {"shop", "twin"}
    assert pair.fall > by_name["user"].fall
    assert by_name["age"].made == ["age_bucket_target", "age_bucket"]
    assert by_name["at"].made == ["hour"]
    assert by_name["shop"].made == ["shop_target", "shop_user"]


@pytest.mark.slow
@pytest.mark.parametrize("column", ["age", "weak", "history", "at"])
def test_the_fall_is_that_of_a_log_with_the_column_shuffled(folder: Path, column: str) -> None:
    """Raw rows, shuffled by the same permutation and scored from Python; scikit-learn's AUC."""
    found = importance_of(folder, "importance.repeats=1", "importance.rows=3000")
    total = read_manifest(folder / "data").splits["test"].rows
    test = draw().slice(ROWS - total).take(np.arange(3000) * total // 3000)
    plain, shuffled = scores_of(folder, test), scores_of(folder, shuffle(test, column))
    labels = test["clicked"].to_numpy()
    by_name = {each.column: each.fall for each in found.columns}
    fall = roc_auc_score(labels, plain) - roc_auc_score(labels, shuffled)
    assert by_name[column] == pytest.approx(fall, abs=2e-6)


def shuffle(rows: pa.Table, column: str) -> pa.Table:
    """Raw ``rows`` with one column in the order of the first repeat."""
    order = permutation(len(rows), 0, 0, IMPORTANCE)
    return rows.set_column(rows.column_names.index(column), column, rows.column(column).take(order))


def scores_of(folder: Path, rows: pa.Table) -> np.ndarray:
    return dlrm.load(folder / "run").predict(rows.drop_columns(["clicked", "request"]))


def by_request(table: pa.Table, scores: np.ndarray, one: Callable[[np.ndarray, np.ndarray], float]) -> float:
    """The mean of ``one`` (labels, scores) over the requests with a click, of at least two rows."""
    labels, requests = table["clicked"].to_numpy(), table["request"].to_numpy()
    groups = [np.flatnonzero(requests == request) for request in np.unique(requests)]
    return float(np.mean([one(labels[own], scores[own]) for own in groups if labels[own].any()]))


def sklearn_ndcg(labels: np.ndarray, scores: np.ndarray) -> float:
    return 1.0 if len(labels) == 1 else float(ndcg_score([labels], [scores], k=5))


def sklearn_gauc(table: pa.Table, scores: np.ndarray) -> float:
    labels, requests = table["clicked"].to_numpy(), table["request"].to_numpy()
    groups = [np.flatnonzero(requests == request) for request in np.unique(requests)]
    both = [own for own in groups if 0 < labels[own].sum() < len(own)]
    return float(
        np.average([roc_auc_score(labels[own], scores[own]) for own in both], weights=[*map(len, both)])
    )


MEASURED: dict[str, Callable[[pa.Table, np.ndarray], float]] = {
    "logloss": lambda table, scores: log_loss(table["clicked"].to_numpy(), scores.astype(float)),
    "pr_auc": lambda table, scores: average_precision_score(table["clicked"].to_numpy(), scores),
    "gauc": sklearn_gauc,
    "ndcg@5": lambda table, scores: by_request(table, scores, sklearn_ndcg),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "metric",
    [pytest.param(name, marks=pytest.mark.long if name in ("gauc", "pr_auc") else ()) for name in MEASURED],
)
def test_the_fall_of_any_metric_is_that_of_a_log_with_the_column_shuffled(folder: Path, metric: str) -> None:
    """By scikit-learn, group by group where the metric is one of groups. A worse log loss is higher."""
    words = ["importance.repeats=1", "importance.rows=null", f"importance.metric={metric}"]
    found = importance_of(folder, *words, "group_by=request")
    total = read_manifest(folder / "data").splits["test"].rows
    test, measure = draw().slice(ROWS - total), MEASURED[metric]
    by_name = {each.column: each for each in found.columns}
    plain, sign = measure(test, scores_of(folder, test)), -1 if metric == "logloss" else 1
    for column in ("age", "weak"):
        fall = sign * (plain - measure(test, scores_of(folder, shuffle(test, column))))
        assert by_name[column].fall == pytest.approx(fall, abs=2e-6)
        assert by_name[column].low < fall < by_name[column].high
    assert by_name["user"].low > by_name["age"].high
    assert found.metric == metric


@pytest.mark.slow
def test_the_metric_is_the_one_that_decides_which_evaluation_is_the_best(folder: Path) -> None:
    """The run's groups are taken too; the table names the metric."""
    words = ["evaluation.best=ndcg@5", "evaluation.group_by=request", "trainer.max_steps=3"]
    train_here(folder / "ranker", f"data.path={folder}/data", *words, "trainer.global_batch_size=256")
    result = evaluate_here(
        f"checkpoint={folder}/ranker", "split=test", "importance.repeats=1", "importance.rows=500"
    )
    found = result.models[0].importance
    assert found is not None
    assert (found.metric, result.group_by) == ("ndcg@5", "request")
    text = str(result)
    assert "the fall of the NDCG@5 when a column is shuffled" in text
    words = ["importance.repeats=1", "importance.rows=500", "importance.metric=logloss"]
    other = evaluate_here(f"checkpoint={folder}/ranker", "split=test", *words)
    assert "the rise of the log loss when a column is shuffled" in str(other)
    assert other.group_by is None


def test_metrics_of_groups_are_measured_on_whole_groups(folder: Path) -> None:
    """All rows of each drawn request, on any number of ranks, and no more rows than asked for."""
    manifest = read_manifest(folder / "data")
    requests = draw()["request"].to_numpy()[ROWS - manifest.splits["test"].rows :]
    found = []
    for world_size in (1, 3):
        ranks = [Ranks(rank, rank, world_size, world_size, "cpu") for rank in range(world_size)]
        rows = [
            SampledRows(manifest, "test", ["shop"], 1000, 100, each, PLAIN, group_by="request")
            for each in ranks
        ]
        assert 900 < len(rows[0].numbers) <= 1000
        drawn = np.unique(requests[rows[0].numbers])
        assert rows[0].numbers.tolist() == np.flatnonzero(np.isin(requests, drawn)).tolist()
        keys = np.concatenate([each.own_keys for each in rows])
        _, theirs = np.unique(keys, return_inverse=True)
        _, ours = np.unique(requests[rows[0].numbers], return_inverse=True)
        assert len(np.unique(np.stack([theirs, ours]), axis=1).T) == len(drawn)
        found.append(rows[0].numbers.tolist())
    assert found[0] == found[1]


def test_a_group_of_many_rows_is_taken_whole() -> None:
    """Rows without a value are no group."""
    keys = np.array([7, 7, 7, -(1 << 63), 7], np.int64)
    assert whole_groups(keys, 2).tolist() == [0, 1, 2, 4]


def rank_importance(folder: Path, metric: str) -> Importance:
    words = ["importance.repeats=2", "importance.rows=2001", "batch_size=100"]
    return importance_of(folder, *words, f"importance.metric={metric}", "group_by=request")


def test_batches_hold_the_shuffled_rows(folder: Path) -> None:
    """On one rank and on three, compared with the shards' own columns; lists move as wholes, and the last batch is padded."""
    manifest, size = read_manifest(folder / "data"), 1001
    features = ["history", "shop"]
    total = manifest.splits["test"].rows
    table = table_of(manifest, "test").take(np.arange(size) * total // size)
    order = permutation(size, 0, 5, IMPORTANCE)
    for world_size in (1, 3):
        found: dict[str, list[object]] = {"history": [], "shop": [], "age": [], "clicked": []}
        for rank in range(world_size):
            ranks = Ranks(rank, rank, world_size, world_size, "cpu")
            rows = SampledRows(manifest, "test", features, size, 100, ranks, PLAIN)
            batches = rows.batches(["history", "age"], order)
            assert len(batches) == {1: 11, 3: 4}[world_size]
            for batch in batches:
                valid = batch.num_valid
                found["clicked"] += batch.supervision.labels[0][:valid].tolist()
                found["age"] += batch.dense_features[
                    :valid, [c.name for c in manifest.dense].index("age")
                ].tolist()
                for name in features:
                    bags = batch.sparse_features[name]
                    found[name] += [part.tolist() for part in bags.values().split(bags.lengths().tolist())][
                        :valid
                    ]
        assert found["clicked"] == table["clicked"].to_pylist()
        assert found["shop"] == [[value] for value in table["shop"].to_pylist()]
        assert found["age"] == table["age"].take(order).to_pylist()
        assert found["history"] == table["history"].take(order).to_pylist()


@pytest.mark.slow
@pytest.mark.parametrize(
    "metric", ["ndcg@5", *(pytest.param(name, marks=pytest.mark.long) for name in ("auc", "pr_auc", "ne"))]
)
def test_ranks_measure_the_same_as_one(folder: Path, metric: str) -> None:
    alone = rank_importance(folder, metric)
    for together in start_ranks(partial(rank_importance, folder, metric), 2, 2):
        assert [each.column for each in together.columns] == [each.column for each in alone.columns]
        for own, theirs in zip(alone.columns + alone.pairs, together.columns + together.pairs, strict=True):
            assert (theirs.fall, theirs.low, theirs.high) == pytest.approx(
                (own.fall, own.low, own.high), abs=1e-6
            )


def test_what_a_column_tells_of_another() -> None:
    """A renamed column tells all, a coarser one tells less than it is told, and ids that occur once tell nothing."""
    random = np.random.default_rng(0)
    shop, unique = random.integers(0, 100, 10_000), np.arange(10_000)
    assert told_share(shop, (shop * 7) % 100) == 1
    assert told_share(shop, shop // 10) == 1
    assert told_share(shop // 10, shop) < 0.2
    assert told_share(unique, shop) <= 0.02
    assert told_share(random.permutation(shop), shop) <= 0.02


def test_columns_of_the_log_are_found_through_what_is_made_of_them(folder: Path) -> None:
    made = columns_of_log(read_manifest(folder / "data"))
    assert made["shop"] == ["shop_target", "shop", "shop_user"]
    assert made["user"] == ["user_target", "user", "shop_user"]
    assert made["age"] == ["age", "age_bucket_target", "age_bucket"]
    assert made["at"] == ["hour"]
    assert {*made} == {"age", "shop", "twin", "user", "weak", "noise", "history", "at"}


def test_lists_are_taken_whole() -> None:
    bags = Bags(np.array([1, 2, 3, 4], np.int32), np.array([0, 2, 2, 3, 4], np.int32))
    found = taken(bags, np.array([3, 0, 0, 1]))
    assert isinstance(found, Bags)
    assert (found.values.tolist(), found.offsets.tolist()) == ([4, 1, 2, 1, 2], [0, 1, 3, 5, 5])


@pytest.mark.slow
def test_metrics_of_groups_need_groups(folder: Path) -> None:
    words = [f"checkpoint={folder}/run", "importance.repeats=1", "importance.metric=mrr"]
    with pytest.raises(ConfigError) as refused:
        evaluate_here(*words)
    (problem,) = refused.value.problems
    assert (problem.key, problem.value, problem.cure) == ("importance.metric", "mrr", "add group_by=COLUMN")


def test_metrics_are_named() -> None:
    words = ["checkpoint=run", "importance.repeats=1", "importance.metric=ndcg"]
    (problem,) = compose_config("evaluate", EvaluateConfig, words).problems()
    assert problem.key == "importance.metric"
    assert "ndcg@10" in problem.rule


def test_scores_alone_have_no_columns() -> None:
    config = compose_config("evaluate", EvaluateConfig, ["scores=[a.parquet]", "importance.repeats=1"])
    found = [problem.key for problem in config.problems()]
    assert found == ["importance.repeats"]
