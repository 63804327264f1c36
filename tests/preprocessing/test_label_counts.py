"""Counts of other labels: in the manifest, after any cut, in dlrm-check, and in the rows of days."""

from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dlrm_app.checksums import checksum
from dlrm_app.dataset.label_counts import MOST_WEIGHT, balanced_labels, label_table
from dlrm_app.dataset.manifest import read_manifest, write_manifest
from dlrm_app.dataset.splits import LabelCounts
from dlrm_app.errors import DataError
from dlrm_app.tools.checking.check_dataset import check_dataset, conclude
from dlrm_app.tools.daily.rows import Earlier, write_rows
from tests.labelled_log import (
    HASH,
    all_roles,
    describe_all_roles,
    describe_labels,
    draw_labelled,
    made,
)
from tests.make_log import write_csv
from tests.preprocessing.running import make, table_of
from tests.refusals import refused

ROWS = 3000


@pytest.fixture
def log(tmp_path: Path) -> Path:
    describe_labels(tmp_path)
    write_csv(tmp_path / "log.csv", draw_labelled(ROWS)[0])
    return tmp_path


def test_the_manifest_counts_the_rows_that_have_each_label(log: Path) -> None:
    manifest = made(log, "out", "log.csv", "split.val=0.2")
    for split in ("train", "val"):
        table = table_of(manifest, split)
        for name in ("order", "like"):
            values = table[name].to_numpy()
            clicked = table["clicked"].to_numpy() == 1
            both = LabelCounts(int((clicked & ~np.isnan(values)).sum()), int((clicked & (values == 1)).sum()))
            expected = LabelCounts(
                int((~np.isnan(values)).sum()),
                int((values == 1).sum()),
                where_given=both if name == "order" else None,
            )
            assert manifest.splits[split].labels[name] == expected


@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("share", [1.0, 0.25])
def test_rows_count_as_in_metrics(log: Path, is_weighted: bool, share: float) -> None:
    """By their weights, and 1 / share times without the main label."""
    describe_labels(log, weighted=is_weighted)
    sampled = [] if share == 1 else [f"sampling.negatives={share}"]
    manifest = made(log, "out", "log.csv", *sampled)
    table = table_of(manifest)
    weights = table["importance"].to_numpy().astype(float) if is_weighted else np.ones(len(table))
    weights = np.where(table["clicked"].to_numpy() == 1, weights, weights / share)
    for label in manifest.other_labels:
        values = table[label.name].to_numpy()
        known, positive = ~np.isnan(values), values == 1
        expected = weights[positive].sum(), weights[known].sum()
        assert manifest.clicks_and_rows("train", label=label) == pytest.approx(expected, rel=1e-11)
        expected = weights[positive].sum(), weights[known].sum()
        counts = manifest.splits["train"].labels[label.name]
        assert (counts.weights is not None, counts.negatives is not None) == (is_weighted, share < 1)
        once = np.where(table["clicked"].to_numpy() == 1, 1, 1 / share)
        unweighted = manifest.without_weights().clicks_and_rows("train", label=label)
        assert unweighted == pytest.approx((once[positive].sum(), once[known].sum()), rel=1e-11)
        as_in_loss = manifest.without_weights().clicks_and_rows("train", label=label, all_negatives=False)
        assert as_in_loss == (positive.sum(), known.sum())


def test_the_size_of_units_does_not_matter(log: Path) -> None:
    rows = draw_labelled(60_000)[0]
    write_csv(log / "many.csv", rows)
    parts = ["layout.unit_mib=1", "sampling.negatives=0.5"]
    one, several = made(log, "one", "many.csv", parts[1]), made(log, "several", "many.csv", *parts)
    assert (log / "many.csv").stat().st_size > 1 << 20
    assert one.splits["train"].labels == several.splits["train"].labels
    for name in ("clicked", "order", "like"):
        np.testing.assert_array_equal(*(table_of(each)[name].to_numpy() for each in (one, several)))


def test_rows_with_a_label_and_without_its_given_are_counted(log: Path) -> None:
    """They are kept, and the summary warns; missing ones do not count."""
    rows = draw_labelled(6)[0]
    rows = rows.set_column(0, "clicked", pa.array([0, 0, 1, 0, 1, 0]))
    rows = rows.set_column(2, "order", pa.array([1, 1, 1, 0, 0, None]))
    write_csv(log / "few.csv", rows)
    given = [f"dataset={log}/log.yaml", *HASH, f"input.train={log}/few.csv"]
    dataset = make(log / "out", *given)
    train = dataset.manifest.splits["train"]
    assert (train.rows, train.labels["order"].without_given, train.labels["like"].without_given) == (6, 2, 0)
    assert "warning: 2 of train's rows have order 1 and clicked 0" in str(dataset)
    dataset = make(log / "other", *given, "dataset.labels=[clicked,order]")
    assert dataset.manifest.splits["train"].labels["order"].without_given == 0
    assert "warning" not in str(dataset)


@pytest.mark.parametrize("is_weighted", [False, True])
def test_balanced_labels_count_as_if_no_row_lacked_them(log: Path, is_weighted: bool) -> None:
    """Those without a loss_weight; of a label with a condition, the rows in which it holds."""
    describe_labels(log, weighted=is_weighted)
    manifest = made(log, "out", "log.csv")
    table = table_of(manifest)
    weights = table["importance"].to_numpy().astype(float) if is_weighted else np.ones(len(table))
    clicked, knows = table["clicked"].to_numpy() == 1, ~np.isnan(table["like"].to_numpy())
    clicks, orders, likes = balanced_labels(manifest)
    assert [clicks, orders] == manifest.labels[:2]
    assert likes.loss_weight * weights[knows].sum() == pytest.approx(weights.sum(), rel=1e-9)
    given = replace(manifest, labels=[clicks, replace(orders, loss_weight=1)])
    knows = clicked & ~np.isnan(table["order"].to_numpy())
    expected = weights[clicked].sum() / weights[knows].sum()
    assert balanced_labels(given)[1].loss_weight == pytest.approx(expected, rel=1e-9)
    manifest.splits["train"].labels["like"] = LabelCounts(1, 1)
    assert balanced_labels(manifest.without_weights())[2].loss_weight == MOST_WEIGHT
    manifest.splits["train"].labels["like"] = LabelCounts(0, 0)
    assert balanced_labels(manifest.without_weights())[2].loss_weight == 1


@pytest.mark.parametrize("change", ["value", "count"])
def test_check_names_labels_that_are_not_as_the_manifest_says(log: Path, change: str) -> None:
    describe_labels(log, weighted=True)
    manifest = made(log, "out", "log.csv", "split.val=0.2", "sampling.negatives=0.5")
    findings = conclude(check_dataset(log / "out"))
    assert [cell for row in label_table(manifest)[1] for cell in row[:2]] == [
        "train", "order", "train", "like", "val", "order", "val", "like",
    ]  # fmt: skip
    assert all(label in str(findings) for label in ("order", "like"))
    train = manifest.splits["train"]
    if change == "count":
        counts = train.labels["like"]
        train.labels["like"] = replace(counts, positives=counts.positives - 1)
        write_manifest(log / "out", manifest)
        key, rule = "the train split", f"has {counts.positives} positives of like, the manifest says ..."
    else:
        path = log / "out" / train.shards[0].path
        table = pq.read_table(path)
        likes = table["like"].to_numpy().copy()
        likes[7] = 2
        pq.write_table(table.set_column(2, table.schema.field("like"), pa.array(likes)), path)
        groups = [
            pq.read_metadata(path).row_group(i).num_rows for i in range(pq.read_metadata(path).num_row_groups)
        ]
        train.shards[0] = replace(
            train.shards[0], bytes=path.stat().st_size, checksum=checksum(path), row_groups=groups
        )
        write_manifest(log / "out", manifest)
        key, rule = train.shards[0].path, "is wrong in column like: 1 labels are neither 0 nor 1, nor NaN..."
    with refused(DataError, key, rule):
        conclude(check_dataset(log / "out"))


def test_rows_of_days_keep_their_labels_and_counts(tmp_path: Path) -> None:
    describe_all_roles(tmp_path)
    datasets = []
    for number in range(2):
        write_csv(tmp_path / f"{number}.csv", all_roles(ROWS, seed=number))
        keys = ["split.val=0.2", "dataset.negatives_kept=0.5"]
        datasets.append(made(tmp_path, str(number), f"{number}.csv", *keys))
    first, second = datasets
    earlier = [Earlier(date(2026, 1, 1), first, "train", 0.25)]
    write_rows(second, date(2026, 1, 2), earlier, tmp_path / "rows")
    rows = read_manifest(tmp_path / "rows")
    assert rows.labels == second.labels
    for split in rows.splits:
        table = table_of(rows, split)
        weights = table["importance"].to_numpy().astype(float)
        weights = np.where(table["clicked"].to_numpy() == 1, weights, 2 * weights)
        for label in rows.other_labels:
            values = table[label.name].to_numpy()
            expected = weights[values == 1].sum(), weights[~np.isnan(values)].sum()
            assert rows.clicks_and_rows(split, label=label) == pytest.approx(expected, rel=1e-11)
            counts = rows.splits[split].labels[label.name]
            assert (counts.rows, counts.positives) == ((~np.isnan(values)).sum(), (values == 1).sum())
    assert rows.splits["train"].rows == second.splits["train"].rows + int(0.25 * first.splits["train"].rows)


def test_days_of_other_labels_are_refused(tmp_path: Path) -> None:
    describe_all_roles(tmp_path)
    write_csv(tmp_path / "log.csv", all_roles(500))
    first = made(tmp_path, "first", "log.csv", "split.val=0.2", "dataset.labels=[clicked,like]")
    second = made(tmp_path, "second", "log.csv", "split.val=0.2")
    with refused(DataError, f"{tmp_path}/second", "has other columns than ... (order)..."):
        write_rows(
            first, date(2026, 1, 2), [Earlier(date(2026, 1, 1), second, "train", 1.0)], tmp_path / "rows"
        )
