"""GAUC is that of raw values: kept columns give scikit-learn's number in every format; shared groups are refused."""

from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from sklearn.metrics import roc_auc_score

from dlrm_app.dataset.manifest import Manifest, read_manifest
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.errors import ConfigError, DataError
from dlrm_app.evaluation.grouped_auc import MISSING_KEY, collect_groups, grouped_auc
from tests.inference.conftest import predicted
from tests.make_log import make_log
from tests.preprocessing.running import run, table_of
from tests.ranks import on_ranks, train_on_ranks
from tests.refusals import refused
from tests.scored import scored
from tests.small_run import SMALL, evaluate_here, events, train_here

ROWS, USERS = 6000, 900
COLUMNS = [
    "{name: clicked, role: label}",
    "{name: price, role: dense, kind: float}",
    "{name: user, role: sparse, kind: string}",
    "{name: shop, role: sparse, kind: integer}",
]
HASH, RARE = ["encoding=hash", "encoding.num_embeddings=200"], ["encoding=vocab", "encoding.min_count=20"]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """log.csv and log.parquet with the same rows, of which some have no user."""
    folder, rng = tmp_path_factory.mktemp("users"), np.random.default_rng(0)
    user = (USERS * rng.random(ROWS) ** 2).astype(int)
    price, taste = rng.normal(size=ROWS), rng.normal(size=USERS)
    clicked = (rng.random(ROWS) < 1 / (1 + np.exp(-price - taste[user]))).astype(int)
    names = pa.array([f"user-{number}" if number % 97 else None for number in user])
    columns = {"clicked": clicked, "price": price, "user": names, "shop": rng.integers(-5, 5, ROWS)}
    table = pa.table(columns)
    make_log(folder, COLUMNS, table)
    pq.write_table(table, folder / "log.parquet", row_group_size=700)
    return folder


def made(log: Path, output: Path, *words: str, kind: str = "csv") -> Manifest:
    files = [f"dataset={log}/log.yaml", f"input.train={log}/log.{kind}", "split.val=0.4", "threads=1"]
    return run(output, *files, *words, "layout.row_group_rows=512")


def true_gauc(scores: np.ndarray, labels: np.ndarray, groups: np.ndarray) -> float:
    """The mean AUC of groups with both classes, weighted by rows, by scikit-learn."""
    total = weights = 0.0
    for group in {*groups.tolist()} - {None}:
        rows = groups == group
        if 0 < labels[rows].sum() < rows.sum():
            total += rows.sum() * roc_auc_score(labels[rows], scores[rows])
            weights += rows.sum()
    return total / weights


def users_of_val(log: Path) -> np.ndarray:
    return np.array(pq.read_table(log / "log.parquet")["user"].to_pylist(), object)[-ROWS * 2 // 5 :]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "encoding"), [("csv", HASH), ("parquet", RARE)], ids=["csv-hashed", "parquet-rare"]
)
def test_gauc_groups_rows_by_raw_values(kind: str, encoding: list[str], log: Path, tmp_path: Path) -> None:
    manifest = made(log, tmp_path / "data", *encoding, "keep=[user]", kind=kind)
    keys = [f"data.path={tmp_path}/data", "evaluation.group_by=user", "optimizer.sparse.lr=0.1"]
    train_here(tmp_path / "run", *keys)
    words = [f"model={tmp_path}/run", f"data.path={tmp_path}/data", "split=val"]
    scores = predicted(tmp_path / "s.parquet", *words)
    score, label = scores["score"].to_numpy(), table_of(manifest, "val")["clicked"].to_numpy()
    expected = true_gauc(score, label, users_of_val(log))
    (event,) = events(tmp_path / "run", "eval")
    assert event["gauc"] == pytest.approx(expected, abs=1e-6)
    words = [f"checkpoint={tmp_path}/run", "split=val", "group_by=user"]
    assert evaluate_here(*words).models[0].metrics["gauc"] == event["gauc"]
    files = [f"scores=[{tmp_path}/s.parquet]", f"data.path={tmp_path}/data", *words[1:]]
    assert evaluate_here(*files).models[0].metrics["gauc"] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("encoding", "why"), [(HASH, "values are hashed to 199 ids"), (RARE, "all rare values share one id")]
)
def test_shared_groups_are_refused(encoding: list[str], why: str, log: Path, tmp_path: Path) -> None:
    made(log, tmp_path / "data", *encoding)
    with refused(DataError, "group_by=user", f"...of the rows of val in ...{why}...", cure="...keep=[user]"):
        train_here(tmp_path / "run", f"data.path={tmp_path}/data", "evaluation.group_by=user")
    assert not (tmp_path / "run").exists()
    train_here(tmp_path / "run", f"data.path={tmp_path}/data")
    with refused(DataError, "group_by=user", f"...{why}...", cure="...keep=[user]"):
        evaluate_here(f"checkpoint={tmp_path}/run", "split=val", "group_by=user")


def test_kept_values_change_nothing_else(log: Path, tmp_path: Path) -> None:
    """Not the features, not the encodings; and a resumed or shuffled dataset keeps the same values."""
    plain = made(log, tmp_path / "plain", *HASH)
    for number, words in enumerate((["keep=[user,shop]"], ["keep=[user,shop]", "shuffle=full"])):
        kept = made(log, tmp_path / f"kept{number}", *HASH, *words)
        assert (kept.sparse, kept.dense) == (plain.sparse, plain.dense)
        assert [(column.name, column.kind) for column in kept.kept] == [
            ("user", "string"),
            ("shop", "integer"),
        ]
        assert table_of(kept, "val").select(table_of(plain, "val").column_names) == table_of(plain, "val")
        rows = table_of(kept)
        low, high = (rows[f"shop:{part}"].to_numpy().astype(np.int64) for part in ("low", "high"))
        shops = (high << 32) | (low & 0xFFFFFFFF)
        assert {*shops.tolist()} == {*range(-5, 5)}
        users = {*zip(rows["user:low"].to_pylist(), rows["user:high"].to_pylist(), strict=True)}
        assert len(users) == len({*pq.read_table(log / "log.parquet")["user"].to_pylist()[: ROWS * 3 // 5]})
    assert "kept" not in (tmp_path / "plain/manifest.json").read_text()


REQUESTS = [
    "{name: clicked, role: label}",
    "{name: request, role: ignore}",
    "{name: page, role: ignore, kind: integer}",
    "{name: at, role: time, kind: seconds}",
    "{name: price, role: dense, kind: float}",
    "{name: shop, role: sparse, kind: string}",
]


@pytest.mark.parametrize(("kind", "shuffle"), [("csv", "full"), ("parquet", "none")])
@pytest.mark.slow
def test_ignored_columns_and_times_are_kept_and_no_model_reads_them(
    kind: str, shuffle: str, tmp_path: Path
) -> None:
    """Rows share a key exactly if they share a value; all else is as without keep=."""
    rng = np.random.default_rng(1)
    requests = [None if number % 13 == 0 else f"r{number}" for number in rng.integers(0, 300, 2000).tolist()]
    table = pa.table(
        {
            "clicked": rng.integers(0, 2, 2000),
            "request": pa.array(requests),
            "page": rng.integers(-3, 3, 2000),
            "at": rng.integers(0, 50, 2000) + 0.25,
            "price": rng.normal(size=2000),
            "shop": pa.array([f"s{number}" for number in rng.integers(0, 9, 2000)]),
        }
    )
    make_log(tmp_path, REQUESTS, table)
    pq.write_table(table, tmp_path / "log.parquet", row_group_size=300)
    words = [*HASH, f"shuffle={shuffle}", "split.val=0.4"]
    plain = made(tmp_path, tmp_path / "plain", *words, kind=kind)
    kept = made(tmp_path, tmp_path / "kept", *words, "keep=[request,at,shop,page]", kind=kind)
    assert (kept.sparse, kept.dense, kept.label) == (plain.sparse, plain.dense, plain.label)
    assert table_of(kept).select(table_of(plain).column_names) == table_of(plain)
    kinds = {"request": "string", "at": "time", "shop": "string", "page": "integer"}
    assert {column.name: column.kind for column in kept.kept} == kinds
    rows = table_of(kept, "val")
    own = table.slice(1200)
    for name in kinds:
        low, high = (rows[f"{name}:{part}"].to_numpy().astype(np.int64) for part in ("low", "high"))
        keys = ((high << 32) | (low & 0xFFFFFFFF)).tolist()
        pairs = {*zip(keys, own[name].to_pylist(), strict=True)}
        assert len(pairs) == len({*keys}) == len({*own[name].to_pylist()})
        if name == "page":
            assert all(key == value for key, value in pairs)
        if name == "at":
            assert all(key == value * 1_000_000 for key, value in pairs)
        assert all((key == MISSING_KEY) == (value is None) for key, value in pairs)


def test_columns_that_cannot_be_kept_are_refused(log: Path, tmp_path: Path) -> None:
    with refused(ConfigError, "keep=price", "is not a column of the log that is sparse with one value..."):
        made(log, tmp_path / "data", *HASH, "keep=[price]")


def gauc_of_share(rows: tuple[torch.Tensor, ...], runtime: Runtime) -> float:
    share = slice(*(part * len(rows[0]) // runtime.world_size for part in (runtime.rank, runtime.rank + 1)))
    logits, labels, groups = (part[share] for part in rows)
    return grouped_auc(collect_groups(scored(logits, labels), groups)).mean()


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_keys_of_64_bits_give_the_same_groups_on_any_number_of_ranks(num_ranks: int) -> None:
    rng = np.random.default_rng(3)
    keys = rng.integers(-(2**63), 2**63 - 1, 40)[rng.integers(0, 40, 3000)]
    keys[:100] = MISSING_KEY
    logits, labels = rng.normal(size=3000).round(1).astype(np.float32), rng.random(3000) < 0.3
    groups = np.array([None if key == MISSING_KEY else key for key in keys], object)
    rows = tuple(torch.from_numpy(part) for part in (logits, labels, keys))
    found = on_ranks(partial(gauc_of_share, rows), num_ranks)
    assert found == pytest.approx([true_gauc(logits, labels, groups)] * num_ranks, abs=1e-12)


@pytest.mark.slow
def test_two_ranks_report_the_same_gauc(log: Path, tmp_path: Path) -> None:
    made(log, tmp_path / "data", *HASH, "keep=[user]")
    keys = [
        *SMALL,
        f"data.path={tmp_path}/data",
        "evaluation.group_by=user",
        "report.enabled=false",
        "trainer.max_steps=10",
    ]
    for ranks in (1, 2):
        train_on_ranks(ranks, *keys, f"output={tmp_path}/{ranks}")
    one, two = (events(tmp_path / str(ranks), "eval")[-1]["gauc"] for ranks in (1, 2))
    assert one == pytest.approx(two, abs=1e-4)
    assert read_manifest(tmp_path / "data").kept[0].name == "user"
