"""Sampled negatives: the same rows stay whatever the units, files, format, threads and interruptions."""

import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dlrm_app.config.evaluate import EvaluateConfig
from dlrm_app.dataset.manifest import Manifest
from dlrm_app.errors import ConfigError, DataError
from dlrm_app.evaluation.evaluate_checkpoints import evaluate_checkpoints
from tests.composed import compose_config
from tests.make_log import write_csv
from tests.preprocessing.interruptions import run_in_pieces
from tests.preprocessing.running import content, run, table_of
from tests.refusals import refused
from tests.weighted_log import COLUMNS, describe, draw_rows

ROWS, SHARE = 60_000, 0.1
GIVEN = ["encoding=hash", "encoding.num_embeddings=100", f"sampling.negatives={SHARE}", "layout.unit_mib=1"]
NUMBERED = [*COLUMNS, "{name: number, role: dense, kind: integer}"]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1.8 MiB of text, two units; a column numbers the rows."""
    folder = tmp_path_factory.mktemp("sampling")
    describe(folder, columns=NUMBERED)
    write_csv(folder / "log.csv", rows_of_log())
    return folder


def rows_of_log() -> pa.Table:
    return draw_rows(ROWS, base=-2.5)[0].append_column("number", pa.array(np.arange(ROWS)))


def make(log: Path, name: str, *more: str, source: str = "log.csv") -> Manifest:
    given = [] if any(each.startswith("dataset=") for each in more) else [f"dataset={log}/log.yaml"]
    given += [f"input.train={log}/{source}", *GIVEN, "dense.transform=none", *more]
    return run(log / name, *given)


def numbers(manifest: Manifest, split: str = "train") -> list[int]:
    """The numbers of a split's rows, in their order in the log."""
    return sorted(int(each) for each in table_of(manifest, split)["number"].to_pylist())


@pytest.fixture(scope="module")
def sampled(log: Path) -> Manifest:
    return make(log, "sampled", "split.val=0.2", "split.test=0.1")


def test_clicks_stay_and_a_share_of_the_negatives(log: Path, sampled: Manifest) -> None:
    """Of train; val and test stay whole. The manifest says how many were left out."""
    clicks = rows_of_log()["clicked"].to_numpy()
    cut = int(ROWS * 0.7)
    kept = numbers(sampled)
    assert [number for number in kept if clicks[number]] == np.flatnonzero(clicks[:cut]).tolist()
    negatives = cut - int(clicks[:cut].sum())
    stayed = len(kept) - int(clicks[:cut].sum())
    assert abs(stayed - SHARE * negatives) < 4 * np.sqrt(negatives * SHARE * (1 - SHARE))
    assert numbers(sampled, "val") == list(range(cut, int(ROWS * 0.9)))
    assert numbers(sampled, "test") == list(range(int(ROWS * 0.9), ROWS))
    assert sampled.negatives_kept == {"train": SHARE}
    assert sampled.splits["train"].left_out == negatives - stayed
    assert (sampled.splits["val"].left_out, sampled.splits["test"].left_out) == (0, 0)
    assert sampled.sources[0].rows == ROWS
    all_clicks, all_rows = sampled.clicks_and_rows("train")
    weights = sampled.splits["train"].weights
    assert weights is not None
    assert all_clicks == weights.positives
    assert all_rows == pytest.approx(weights.positives + (weights.all - weights.positives) / SHARE)


def test_the_negatives_that_stay_are_like_all_negatives(sampled: Manifest) -> None:
    """No feature tells them apart: mean age and shares of shops within four standard errors."""
    rows = rows_of_log().to_pandas()
    rows = rows[(rows["clicked"] == 0) & (rows["number"] < ROWS * 0.7)]
    stayed = rows[rows["number"].isin(numbers(sampled))]
    assert abs(stayed["age"].mean() - rows["age"].mean()) < 4 * rows["age"].std() / np.sqrt(len(stayed))
    shares, expected = (each["shop"].value_counts(normalize=True).sort_index() for each in (stayed, rows))
    assert ((shares - expected).abs() < 4.5 * np.sqrt(expected / len(stayed))).all()


WAYS = {
    "one unit": ["layout.unit_mib=64"],
    "threads": ["threads=4"],
    "shuffled blocks": ["shuffle=block"],
    "full shuffle": ["shuffle=full"],
    "vocabularies and targets": [
        "encoding=vocab",
        "encoding.num_embeddings=null",
        "dense.target_columns=[shop]",
    ],
    "row groups": ["layout.row_group_rows=100"],
}


@pytest.mark.parametrize("way", WAYS)
def test_the_same_rows_stay_in_every_way(log: Path, sampled: Manifest, way: str) -> None:
    manifest = make(log, way.replace(" ", "-"), "split.val=0.2", "split.test=0.1", *WAYS[way])
    assert numbers(manifest) == numbers(sampled)


@pytest.mark.parametrize("source", ["log.csv.gz", "log.parquet", "parts"])
def test_the_same_rows_stay_in_every_format(log: Path, sampled: Manifest, source: str) -> None:
    """The same log compressed, as Parquet, and cut into files."""
    rows = rows_of_log()
    (log / "log.csv.gz").write_bytes(gzip.compress((log / "log.csv").read_bytes()))
    pq.write_table(rows, log / "log.parquet", row_group_size=7000)
    (log / "parts").mkdir(exist_ok=True)
    for number, (begin, end) in enumerate([(0, 100), (100, 41_234), (41_234, ROWS)]):
        write_csv(log / "parts" / f"{number}.csv", rows.slice(begin, end - begin))
    manifest = make(log, f"of-{source}", "split.val=0.2", "split.test=0.1", source=source)
    assert numbers(manifest) == numbers(sampled)


@pytest.mark.slow
def test_interruptions_keep_the_same_rows(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed after each two pieces of work: the bytes of an uninterrupted run."""
    keys = ["split.val=0.2", "shuffle=full", "encoding=vocab", "encoding.num_embeddings=null", "threads=1"]
    keys += ["layout.shuffled_shard_rows=3000", "dense.target_columns=[shop,device]"]
    make(log, "whole", *keys)
    assert run_in_pieces(lambda: make(log, "pieces", *keys), monkeypatch, commits=2) > 2
    assert content(log / "pieces") == content(log / "whole")


def test_malformed_lines_do_not_move_the_sample(log: Path, sampled: Manifest) -> None:
    lines = (log / "log.csv").read_text().splitlines(keepends=True)
    broken = [1000, 1001, 30_000]
    for number in broken:
        lines[1 + number] = "1,oops\n"
    (log / "broken.csv").write_text("".join(lines))
    keys = ["split.val=0.2", "split.test=0.1", "rejects.max_fraction=0.01"]
    manifest = make(log, "broken", *keys, source="broken.csv")
    assert numbers(manifest) == [number for number in numbers(sampled) if number not in broken]


def test_another_seed_keeps_other_rows_and_a_larger_share_more(log: Path, sampled: Manifest) -> None:
    keys = ["split.val=0.2", "split.test=0.1"]
    assert numbers(make(log, "seed", *keys, "seed=1")) != numbers(sampled)
    more = numbers(make(log, "more", *keys, "sampling.negatives=0.5"))
    assert {*numbers(sampled)} < {*more}
    assert make(log, "all", *keys, "sampling.negatives=1").negatives_kept == {}


def test_splits_by_content_sample_only_train(log: Path) -> None:
    manifest = make(log, "content", "split.val=0.3", "split.by=content")
    whole = make(log, "content-whole", "split.val=0.3", "split.by=content", "sampling.negatives=null")
    assert numbers(manifest, "val") == numbers(whole, "val")
    assert {*numbers(manifest)} < {*numbers(whole)}
    assert manifest.splits["train"].left_out == len(numbers(whole)) - len(numbers(manifest))


@pytest.mark.parametrize("role", ["weight", "ignore"])
def test_target_columns_count_by_weight_and_all_negatives(log: Path, role: str) -> None:
    """Written out from the rows of the shards: a negative counts 1/share times, a row by its weight over the mean."""
    description = (log / "log.yaml").read_text()
    (log / f"{role}.yaml").write_text(description.replace("role: weight", f"role: {role}"))
    keys = [f"dataset={log}/{role}.yaml", "dense.target_columns=[shop]", "split.val=0.2"]
    manifest = make(log, f"targets-{role}", *keys)
    table = table_of(manifest)
    weights = table["importance"].to_numpy().astype(float) if role == "weight" else np.ones(len(table))
    clicks = table["clicked"].to_numpy()
    counted = np.where(clicks, 1, 1 / SHARE) * weights / weights.mean()
    rows, of_clicks = (
        np.bincount(table["shop"].to_numpy(), each, 100) for each in (counted, counted * clicks)
    )
    found = pq.read_table(manifest.folder / "target" / "shop.parquet").to_pandas()
    assert found["rows"].to_numpy() == pytest.approx(rows, rel=1e-9)
    assert found["clicks"].to_numpy() == pytest.approx(of_clicks, rel=1e-9)
    rule = manifest.dense[-1].transform
    assert rule["rate"] == pytest.approx((of_clicks.sum() + 0.5) / (rows.sum() + 1), rel=1e-9)
    prior = rule["strength"] * rule["rate"], rule["strength"] * (1 - rule["rate"])
    expected = np.log((of_clicks + prior[0]) / (rows - of_clicks + prior[1])) - np.log(prior[0] / prior[1])
    assert found["log_odds"].to_numpy() == pytest.approx(expected, rel=1e-5, abs=1e-6)
    whole = make(log, f"targets-whole-{role}", *keys, "sampling.negatives=null").dense[-1].transform
    assert rule["rate"] == pytest.approx(whole["rate"], rel=0.03)


def test_logs_that_were_sampled_before_say_so(log: Path, tmp_path: Path) -> None:
    """For all splits, or for those that are named; sampling again multiplies the shares."""
    write_csv(tmp_path / "log.csv", rows_of_log().slice(0, 2000))
    write_csv(tmp_path / "val.csv", rows_of_log().slice(2000, 500))
    keys = [f"input.val={tmp_path}/val.csv"]
    for index, (share, more, expected) in enumerate(
        [
            ("0.2", "sampling.negatives=null", {"train": 0.2, "val": 0.2}),
            ("{train: 0.2}", "sampling.negatives=null", {"train": 0.2}),
            ("0.2", "sampling.negatives=0.5", {"train": 0.1, "val": 0.2}),
            ("1", "sampling.negatives=null", {}),
        ]
    ):
        describe(tmp_path, f"negatives_kept: {share}", columns=NUMBERED)
        assert make(tmp_path, str(index), *keys, more).negatives_kept == pytest.approx(expected)


@pytest.mark.parametrize("share", ["0", "1.5", "yes", "{holdout: 0.1}", "{train: 0}", "[0.1]"])
def test_an_invalid_share_is_refused(tmp_path: Path, share: str) -> None:
    describe(tmp_path, f"negatives_kept: {share}", columns=NUMBERED)
    with refused(ConfigError, "dataset.negatives_kept", "must be a share above 0 and up to 1, or one..."):
        make(tmp_path, "out")


def test_splits_of_one_input_are_one_sample(tmp_path: Path) -> None:
    describe(tmp_path, "negatives_kept: {train: 0.1}", columns=NUMBERED)
    rule = "says that val and train are other samples, and split.val cuts one off the other"
    with refused(ConfigError, "dataset.negatives_kept", rule):
        make(tmp_path, "out", "split.val=0.1")


def test_sampling_without_labels_is_refused(log: Path, tmp_path: Path) -> None:
    rule = "needs the labels of the training rows"
    with refused(ConfigError, "sampling.negatives", rule):
        make(log, "unlabelled", "input.unlabelled=[train]")
    describe(tmp_path, columns=NUMBERED[1:])
    write_csv(tmp_path / "log.csv", rows_of_log().slice(0, 100))
    with refused(ConfigError, "sampling.negatives", rule):
        make(tmp_path, "out")
    with refused(ConfigError, "sampling.negatives", "samples the train split, and input.train is not given"):
        run(log / "val", f"dataset={log}/log.yaml", f"input.val={log}/log.csv", *GIVEN)


def test_scores_find_their_lines_in_a_sampled_split(log: Path, sampled: Manifest, tmp_path: Path) -> None:
    """Val's lines are found although most of train's are not in the dataset; train's cannot be found."""
    clicks = rows_of_log()["clicked"].to_numpy()

    def evaluate(split: str, rows: list[int]) -> dict[str, float]:
        lines = np.array(rows) + 2  # counted from 1, after the header
        names = [f"{log}/log.csv"] * len(lines)
        scores = pa.table({"score": 0.2 + 0.6 * clicks[rows], "file": names, "line": lines})
        pq.write_table(scores, tmp_path / "scores.parquet")
        words = [f"data.path={sampled.folder}", f"scores=[{tmp_path}/scores.parquet]", f"split={split}"]
        config = compose_config("evaluate", EvaluateConfig, [*words, "threads=1"])
        return evaluate_checkpoints(config).models[0].metrics

    assert evaluate("val", numbers(sampled, "val"))["auc"] == 1.0
    with refused(
        DataError, "scores=...", "has file and line, by which the rows of train in ... cannot be found"
    ):
        evaluate("train", numbers(sampled))


def test_dask_workers_keep_the_same_rows(log: Path, sampled: Manifest) -> None:
    distributed = pytest.importorskip("distributed", reason="Dask's scheduler is an extra")
    one = {"n_workers": 1, "threads_per_worker": 1, "processes": False, "dashboard_address": None}
    with distributed.LocalCluster(**one) as cluster:
        workers = ["executor=dask", f"dask.address={cluster.scheduler_address}"]
        manifest = make(log, "dask", "split.val=0.2", "split.test=0.1", *workers)
    assert numbers(manifest) == numbers(sampled)


def test_choices_are_made_for_the_rows_that_stay(log: Path) -> None:
    """As the table of choices says: about as many as the dataset gets."""
    manifest = make(log, "chosen", "encoding=auto", "encoding.num_embeddings=null", "dense.transform=auto")
    looked = manifest.config["auto"]
    assert looked["rows"] == pytest.approx(manifest.splits["train"].rows, rel=0.03)
