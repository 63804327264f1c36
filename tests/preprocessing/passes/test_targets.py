"""Target encoding tells no row its own click: by a slow reference, shuffled labels, and a planted leak."""

import gzip
import logging
import math
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from dlrm_app.dataset.manifest import Manifest
from dlrm_app.errors import ConfigError
from dlrm_app.preprocessing.passes.targets import NUM_FOLDS, STRONGEST, prior_strength
from dlrm_app.text import percent
from dlrm_app.tools.checking.check_dataset import check_dataset
from tests.preprocessing import reference
from tests.preprocessing.clicks import make_clicks
from tests.preprocessing.running import make, run, spec_of, table_of
from tests.refusals import refused

SEED = 5
ROWS = 20_000
COLUMNS = [column.name for column in spec_of("criteo_kaggle").sparse]


@pytest.fixture(scope="module")
def clicks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Labels that nothing in the row tells of: as if they had been shuffled."""
    path = tmp_path_factory.mktemp("targets") / "clicks.tsv"
    path.write_bytes(make_clicks(ROWS))
    return path


@pytest.fixture(scope="module")
def dataset(clicks: Path) -> Manifest:
    options = [
        "dense.target_columns=all",
        "encoding=vocab",
        "encoding.min_count=2",
        "split.val=0.5",
        f"seed={SEED}",
    ]
    return run(clicks.parent / "dataset", f"input.train={clicks}", *options)


def folds_of_rows(path: Path, count: int) -> NDArray[np.int64]:
    """The fold of each of the first ``count`` rows."""
    spec = spec_of("criteo_kaggle")
    rows = [reference.parse_line(line, spec) for line in path.read_bytes().splitlines()[:count]]
    return np.array([reference.deal_key(reference.content_hash(row), SEED, 1) % NUM_FOLDS for row in rows])


def reference_value(ids: NDArray[np.int32], labels: NDArray[np.int64], strength: float, own: int) -> float:
    """What rows with ``ids`` and ``labels`` say of a row with id ``own``."""
    rate = (labels.sum() + 0.5) / (len(labels) + 1)
    clicks = labels[ids == own].sum() + strength * rate
    others = (1 - labels[ids == own]).sum() + strength * (1 - rate)
    return math.log(clicks / others) - math.log(rate / (1 - rate))


def test_a_row_is_encoded_by_the_rows_of_other_folds(clicks: Path, dataset: Manifest) -> None:
    train, val = table_of(dataset), table_of(dataset, "val")
    labels = train["label"].to_numpy().astype(np.int64)
    folds = folds_of_rows(clicks, len(train))
    for name in COLUMNS[::9]:
        transform = next(c.transform for c in dataset.dense if c.name == f"{name}_target")
        ids, new_ids = train[name].to_numpy(), val[name].to_numpy()
        found, found_new = train[f"{name}_target"].to_numpy(), val[f"{name}_target"].to_numpy()
        for row in range(0, len(train), 500):
            others = folds != folds[row]
            expected = reference_value(ids[others], labels[others], transform["strength"], ids[row])
            assert found[row] == pytest.approx(expected, rel=1e-5, abs=1e-6)
        for row in range(0, len(val), 500):
            expected = reference_value(ids, labels, transform["strength"], new_ids[row])
            assert found_new[row] == pytest.approx(expected, rel=1e-5, abs=1e-6)


LABELLED = [
    "dataset.name=log",
    "dataset.header=true",
    'dataset.delimiter=","',
    "dataset.labels=[click,{order:{given:click}},like]",
    "dataset.columns=[{name: click, role: label}, {name: order, role: label}, {name: like, role: label}, "
    "{name: weight, role: %s}, {name: item, role: sparse, kind: integer}, {name: n, role: sparse, kind: integer}]",
    "encoding=vocab",
    "encoding.crosses=null",
    "dense.target_columns=[item]",
]


@pytest.mark.parametrize("role", ["ignore", "weight"])
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_every_label_has_a_column_of_the_rows_that_say_it(tmp_path: Path, role: str, share: float) -> None:
    """New rows are encoded by all training rows: of orders by those with a click, of likes by those that have one.

    Of sampled rows, each without a click counts twice.
    """
    draw = np.random.default_rng(3)
    click, order, like = (draw.random((3, 4000)) < np.array([[0.5], [0.4], [0.3]])).astype(int)
    order, known = order * click, draw.random((2, 4000)) < 0.8
    weight, item = draw.integers(1, 5, 4000), draw.integers(0, 30, 4000)
    texts = [
        ["" if not k else str(v) for k, v in zip(*pair, strict=True)]
        for pair in zip(known, (order, like), strict=True)
    ]
    lines = [",".join(map(str, row)) for row in zip(click, *texts, weight, item, range(4000), strict=True)]
    (tmp_path / "log.csv").write_text("click,order,like,weight,item,n\n" + "\n".join(lines) + "\n")
    keys = [key % role if "%s" in key else key for key in LABELLED]
    sampling = [f"sampling.negatives={share}"] if share < 1 else []
    manifest = run(tmp_path / "out", f"input.train={tmp_path}/log.csv", "split.val=0.5", *keys, *sampling)
    train, val = (table_of(manifest, split).to_pandas() for split in ("train", "val"))
    assert [c.name for c in manifest.dense] == ["item_target", "item_target_order", "item_target_like"]
    each = train[manifest.weight] if manifest.weight else np.ones(len(train))
    mean = each.mean()
    counted = {
        "order": (train["click"] == 1) & train["order"].notna(),
        "like": train["like"].notna(),
    }
    for label, rows in counted.items():
        transform = next(c.transform for c in manifest.dense if c.name == f"item_target_{label}")
        times = each / mean * np.where(train["click"] == 1, 1, 1 / share)
        yes, no = (
            (times * (rows & (train[label] == value))).groupby(train["item"]).sum() for value in (1, 0)
        )
        rate = (yes.sum() + 0.5) / (yes.sum() + no.sum() + 1)
        prior = transform["strength"] * rate, transform["strength"] * (1 - rate)
        expected = np.log((yes + prior[0]) / (no + prior[1])) - np.log(prior[0] / prior[1])
        assert transform["rate"] == pytest.approx(rate, rel=1e-6)
        found = val.groupby("item")[f"item_target_{label}"].first()
        np.testing.assert_allclose(found, expected[found.index], rtol=1e-4, atol=1e-5)


def test_shuffled_labels_teach_nothing_and_a_leak_is_found(
    clicks: Path, dataset: Manifest, tmp_path: Path
) -> None:
    """A model of the columns of training rows has an AUC of 0.50 ± 0.01 on them and on val. The same rows
    encoded as new ones, with their own clicks in, would have it believe in far more."""
    lines = clicks.read_bytes().splitlines(keepends=True)
    (tmp_path / "again.tsv").write_bytes(b"".join(lines[: dataset.splits["train"].rows]))
    leaking = run(
        tmp_path / "leaking",
        f"input.train={tmp_path}/again.tsv",
        "encoding=from_dataset",
        f"encoding.path={dataset.path}",
    )
    labels, new_labels = (table_of(dataset, split)["label"].to_numpy() for split in ("train", "val"))
    honest, new, leak = columns_of(dataset), columns_of(dataset, "val"), columns_of(leaking)
    model = LogisticRegression().fit(honest, labels)
    assert abs(roc_auc_score(new_labels, model.decision_function(new)) - 0.5) < 0.01
    assert abs(roc_auc_score(labels, honest.sum(1)) - 0.5) < 0.01
    assert roc_auc_score(labels, leak.sum(1)) > 0.55


def columns_of(manifest: Manifest, split: str = "train") -> NDArray[np.float32]:
    table = table_of(manifest, split)
    return np.stack([table[f"{name}_target"].to_numpy() for name in COLUMNS], 1)


def test_the_prior_is_stronger_the_more_similar_values_are() -> None:
    draw = np.random.default_rng(0)
    rows = draw.integers(1, 30, 20_000)
    for strength in (4.0, 40.0):
        rates = draw.beta(strength * 0.1, strength * 0.9, len(rows))
        found = prior_strength(rows, draw.binomial(rows, rates), 0.1)
        assert found == pytest.approx(strength, rel=0.1)
    assert prior_strength(rows, draw.binomial(rows, 0.1), 0.1) > 500
    assert prior_strength(np.array([10, 10]), np.array([1, 1]), 0.1) == STRONGEST
    assert prior_strength(np.array([10, 0, 10]), np.array([0, 0, 10]), 0.5) == 1.0


def test_copies_of_rows_cost_target_columns_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Click rates are planted. With rows logged twice, columns of training rows say as much as those of new rows."""
    draw = np.random.default_rng(1)
    rates = draw.beta(2, 6, 400)
    items, noise = draw.integers(0, 400, 16_000), draw.integers(0, 1 << 30, 16_000)
    labels = draw.random(16_000) < rates[items]
    lines = [f"{int(y)},{item},{n}" for y, item, n in zip(labels, items, noise, strict=True)]
    numbers = "{name: item, role: sparse, kind: integer}, {name: n, role: dense, kind: integer}"
    columns = f"[{{name: y, role: label}}, {numbers}]"
    keys = ["dataset.name=twice", 'dataset.delimiter=","', f"dataset.columns={columns}", "encoding=vocab"]
    (tmp_path / "new").write_text("\n".join(lines[8_000:]) + "\n")
    (tmp_path / "twice").write_text("\n".join([*lines[:8_000], *reversed(lines[:8_000])]) + "\n")
    paths = [f"input.train={tmp_path}/twice", f"input.val={tmp_path}/new"]
    with caplog.at_level(logging.WARNING):
        manifest = run(tmp_path / "out", *keys, *paths, "dense.target_columns=all")
    assert "about 50% of the training rows are copies of others" in caplog.text
    aucs = [
        roc_auc_score(table["y"].to_numpy(), table["item_target"].to_numpy())
        for table in (table_of(manifest), table_of(manifest, "val"))
    ]
    assert abs(aucs[0] - aucs[1]) < 0.02
    assert aucs[1] > 0.6


def test_rows_of_few_values_are_dealt_by_their_places(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """All rows of an item are alike: in one fold, none would say anything of the others."""
    draw = np.random.default_rng(1)
    items = draw.integers(0, 9, 4_000)
    labels = draw.random(4_000) < 0.1 * (items + 1)
    lines = [f"{int(y)},{item}" for y, item in zip(labels, items, strict=True)]
    (tmp_path / "few").write_text("\n".join(lines) + "\n")
    columns = "[{name: y, role: label}, {name: item, role: sparse, kind: integer}]"
    keys = ["dataset.name=few", 'dataset.delimiter=","', f"dataset.columns={columns}", "encoding=vocab"]
    path = [f"input.train={tmp_path}/few", "split.val=0.2"]
    with caplog.at_level(logging.WARNING):
        manifest = run(tmp_path / "out", *keys, *path, "dense.target_columns=all", "split.by=content")
    assert not caplog.text
    table = table_of(manifest)
    assert roc_auc_score(table["y"].to_numpy(), table["item_target"].to_numpy()) > 0.7
    assert set(table["item"].to_numpy()) == set(table_of(manifest, "val")["item"].to_numpy())


@pytest.mark.slow
def test_rows_that_would_see_their_own_clicks_are_named(clicks: Path, tmp_path: Path) -> None:
    keys = ["encoding=vocab", "encoding.min_count=2", "dense.target_columns=[cat_0, cat_3, cat_9]"]
    lines = clicks.read_bytes().splitlines(keepends=True)
    first, later = b"".join(lines[:9000]), b"".join(lines[9000:])
    (tmp_path / "first.tsv").write_bytes(first)
    run(tmp_path / "known", f"input.train={tmp_path}/first.tsv", *keys)
    known = ["encoding=from_dataset", f"encoding.path={tmp_path}/known"]
    (tmp_path / "first.tsv").write_bytes(later)  # the same name, other rows
    files = {"copy": first, "copy.gz": gzip.compress(first), "less": b"".join(lines[1:9000])}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    for name in ("copy", "copy.gz"):
        with refused(
            ConfigError, f"input.train=...{name}", "gave the target columns of ...known their clicks..."
        ):
            run(tmp_path / "refused", f"input.train={tmp_path}/{name}", *known)
    for share in (0.05, 0.4):
        mixed = [*lines[: int(9000 * share)], *lines[9000 : 9000 + int(9000 * (1 - share))]]
        (tmp_path / f"mixed_{share}").write_bytes(b"".join(mixed))
        found = make(tmp_path / f"of_{share}", f"input.val={tmp_path}/mixed_{share}", *known)
        assert found.manifest.own_clicks == {"val": pytest.approx(share, abs=0.001)}
        assert f"about {percent(share)} of the val rows are rows of" in str(found)
    cases = [
        ([f"input.train={tmp_path}/first.tsv", *known], None),
        ([f"input.train={tmp_path}/less", *known], "of the train rows are rows of"),
        ([f"input.val={tmp_path}/less", *known], "of the val rows are rows of"),
        ([f"input.train={tmp_path}/copy", f"input.val={tmp_path}/first.tsv", *keys], None),
        (
            [f"input.train={tmp_path}/copy", f"input.val={tmp_path}/less", *keys],
            "of the val rows are training rows",
        ),
    ]
    for number, (words, warning) in enumerate(cases):
        said = str(make(tmp_path / f"case_{number}", *words))
        assert "own clicks" not in said if warning is None else warning in said


def test_lookups_unknown_to_an_old_vocabulary_are_counted(tmp_path: Path) -> None:
    columns = "[{name: clicked, role: label}, {name: item, role: sparse, kind: integer}]"
    keys = [
        "dataset.name=shop",
        'dataset.delimiter=","',
        f"dataset.columns={columns}",
        "dense.transform=none",
    ]
    (tmp_path / "old").write_text("".join(f"{n % 2},{n % 7}\n" for n in range(70)))
    (tmp_path / "new").write_text("".join(f"{n % 2},{n % 10 or ''}\n" for n in range(90)))
    run(tmp_path / "known", *keys, f"input.train={tmp_path}/old", "encoding=vocab")
    known = ["encoding=from_dataset", f"encoding.path={tmp_path}/known"]
    later = make(tmp_path / "later", *keys, f"input.train={tmp_path}/new", *known)
    assert "does not know: item 33%" in str(later)
    findings = check_dataset(tmp_path / "later")
    # 7, 8 and 9 of 1 to 9; nothing is a missing value
    assert findings.sparse["item"].unknown_share == pytest.approx(1 / 3)
