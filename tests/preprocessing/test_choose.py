"""What auto chooses: a pure function of a look at the rows, which keeps what is typed, and can be typed itself."""

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from dlrm_app.dataset.manifest import read_manifest
from dlrm_app.encoding.pairs import Pair
from dlrm_app.errors import ConfigError
from dlrm_app.logs.spec import LogColumn, Spec
from dlrm_app.preprocessing import choose as choose_module
from dlrm_app.preprocessing.choose import CROSS_GAIN, MOST_CROSSES, MOST_IDS, Choice, boundaries, choose
from dlrm_app.preprocessing.passes import look
from dlrm_app.preprocessing.passes.look import (
    STUDIED_ROWS,
    DenseSummary,
    SampleSummary,
    SparseSummary,
    repeated_column,
    summarize_numbers,
)
from dlrm_app.typed import as_typed
from tests.preprocessing.running import AUTO, configure, content, run, table_of
from tests.refusals import refused

ROWS = 3000
COLUMNS = (
    LogColumn("click", "label"),
    LogColumn("price", "dense", "float"),
    LogColumn("degrees", "dense", "float"),
    LogColumn("visits", "dense", "integer"),
    LogColumn("always", "dense", "integer"),
    LogColumn("user", "sparse", "integer"),
    LogColumn("shop", "sparse", "string"),
    LogColumn("slot", "sparse", "integer"),
    LogColumn("seen", "sparse", "integer", "|"),
)
SPEC = Spec("shop", ",", None, True, COLUMNS)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log with a column of each sort."""
    folder = tmp_path_factory.mktemp("shop")
    draw = np.random.default_rng(0)
    shops, slots = draw.integers(0, 9, ROWS), draw.integers(0, 4, ROWS)
    columns = {
        "click": (draw.random(ROWS) < np.where((shops + slots) % 2, 0.2, 0.6)).astype(int),
        "price": np.round(draw.lognormal(3, 1.5, ROWS), 2),
        "degrees": pa.array(np.round(draw.normal(0, 10, ROWS), 3), mask=draw.random(ROWS) < 0.1),
        "visits": draw.poisson(3, ROWS),
        "always": np.full(ROWS, 7),
        "user": draw.integers(0, 5000, ROWS),
        "shop": [f"s{number}" for number in shops],
        "slot": slots,
        "seen": ["|".join(map(str, draw.integers(0, 50, draw.integers(0, 4)))) for _ in range(ROWS)],
    }
    table = pa.table(columns)
    with (folder / "shop.csv").open("wb") as file:
        file.write((",".join(table.column_names) + "\n").encode())
        pacsv.write_csv(table, file, pacsv.WriteOptions(include_header=False, quoting_style="none"))
    described = [{key: value for key, value in vars(c).items() if value} for c in COLUMNS]
    text = {"name": "shop", "delimiter": ",", "header": True, "columns": described}
    (folder / "shop.yaml").write_text(json.dumps(text))  # which is YAML
    return folder


@pytest.fixture(scope="module")
def auto(shop: Path) -> Path:
    """A dataset for which all is left to choose; not to be changed."""
    return run(shop / "auto", *words(shop)).folder


def words(shop: Path, *more: str) -> list[str]:
    """The command but for its output; keys of AUTO that ``more`` does not type are left to choose."""
    typed = {word.partition("=")[0] for word in more}
    left = [word for word in AUTO if word.partition("=")[0] not in typed]
    files = [f"dataset={shop}/shop.yaml", f"input.train={shop}/shop.csv", "split.val=0.1", "split.test=0.1"]
    return [*files, *left, *more]


def summary(rows: int = ROWS, **values: SparseSummary) -> SampleSummary:
    """Of ``rows`` rows of SPEC, all seen; ``values`` in place of few ones."""
    draw = np.random.default_rng(1)
    dense = {
        "price": draw.lognormal(3, 1.5, 5000),
        "degrees": draw.normal(0, 10, 5000),
        "visits": draw.poisson(3, 5000).astype(float),
        "always": np.full(5000, 7.0),
    }
    sparse = {column.name: SparseSummary(rows, 100) for column in SPEC.sparse} | values
    return SampleSummary(rows, rows, {name: summarize_numbers(v) for name, v in dense.items()}, sparse)


def choice(summary: SampleSummary, *more: str, has_clicks: bool = True) -> Choice:
    config = configure(*words(Path("any"), *more)[1:], "output=x")
    return choose(summary, config.encoding, config.dense, SPEC, has_clicks)


def test_few_rows_have_vocabularies_buckets_and_targets() -> None:
    made = choice(summary())
    assert made.encoding.kind == "vocab"
    assert made.dense.bucket_columns == ["price", "degrees", "visits"]  # not the one that is always 7
    assert made.dense.target_columns == "all"
    assert choice(summary(), has_clicks=False).dense.target_columns is None


def test_many_rows_are_hashed_without_a_pass_over_them() -> None:
    made = choice(summary(STUDIED_ROWS + 1))
    assert (made.encoding.kind, made.encoding.num_embeddings) == ("hash", 100_000)
    assert made.dense.target_columns is None
    assert made.dense.bucket_columns == ["degrees"]  # whose boundaries and moments the look gives
    assert set(made.dense.transform["degrees"]) == {"kind", "mean", "deviation"}


def test_columns_with_long_tails_get_logarithms() -> None:
    rules = choice(summary()).dense.transform
    assert rules["price"] == "log1p"
    assert rules["degrees"]["kind"] == "standardize"
    assert rules["degrees"]["deviation"] == pytest.approx(10, rel=0.05)


def test_columns_with_most_ids_have_no_target_where_clicks_take_too_much_memory() -> None:
    many = choice(
        summary(900_000, user=SparseSummary(900_000, 2_900_000)), "encoding.num_embeddings={shop:5_000_000}"
    )
    assert many.dense.target_columns == ["user", "slot"]
    assert [name for what, name, _ in many.reasons if what == "no target column"] == ["shop"]


def test_a_column_with_too_many_values_is_hashed() -> None:
    made = choice(summary(900_000, user=SparseSummary(40_000_000, 30_000_000)))
    assert (made.encoding.kind, made.encoding.num_embeddings) == ("vocab", {"user": 100_000})
    assert any(name == "user" and "too many" in why for _, name, why in made.reasons)
    assert MOST_IDS < 30_000_000


@pytest.mark.parametrize(
    "typed",
    [
        "encoding.min_count=7",
        "encoding.num_embeddings={user: 500}",
        "dense.transform=log3",
        "dense.bucket_columns=[always]",
        "dense.bucket_boundaries=[1.0, 5.0]",
        "dense.target_columns=[shop]",
        "dense.target_columns=null",
        "encoding.crosses=[[user, shop]]",
        "encoding.crosses=null",
    ],
)
@pytest.mark.parametrize("rows", [ROWS, 10 * STUDIED_ROWS])
def test_typed_settings_are_kept(typed: str, rows: int) -> None:
    config = configure(*words(Path("any"), typed)[1:], "output=x")
    made = choose(summary(rows), config.encoding, config.dense, SPEC, True)
    section, key = typed.partition("=")[0].split(".")
    kept, wanted = (getattr(getattr(each, section), key) for each in (made, config))
    assert kept == ({**kept, **wanted} if isinstance(wanted, dict) else wanted)


def test_pairs_with_the_largest_gain_become_crosses() -> None:
    names = [(f"c{number}", "shop") for number in range(20)]
    gains = [CROSS_GAIN * (0.5 if number > 12 else 20 - number) for number in range(20)]
    seen = replace(summary(), pairs=[Pair(pair, gain) for pair, gain in zip(names, gains, strict=True)])
    made = choice(seen)
    assert made.encoding.crosses == [[*pair] for pair in names[:MOST_CROSSES]]
    assert (
        "cross",
        "c0_x_shop",
        "the pair predicts clicks better than its two columns alone",
    ) in made.reasons
    assert any(what.startswith("vocabulary") and name == "c0_x_shop" for what, name, _ in made.reasons)
    declared = replace(SPEC, derived=(LogColumn("mine", "sparse", "hex", rule="cross", of=("shop", "c0")),))
    config = configure(*words(Path("any"))[1:], "output=x")
    again = choose(seen, config.encoding, config.dense, declared, True).encoding.crosses
    assert again == [[*pair] for pair in names[1 : MOST_CROSSES + 1]]
    assert choice(replace(seen, pairs=seen.pairs[13:])).encoding.crosses is None
    # a setting that lists a number for each column has none for a cross
    assert choice(seen, "encoding.min_count=[2,2,2,2]").encoding.crosses is None


def test_one_number_of_embeddings_hashes_every_column() -> None:
    made = choice(summary(), "encoding.num_embeddings=1000").encoding
    assert (made.kind, made.num_embeddings, made.min_count) == ("hash", 1000, None)


def test_buckets_hold_about_as_many_rows_each() -> None:
    values = np.random.default_rng(2).normal(size=20_000)
    bounds = boundaries(summarize_numbers(values), 32)
    sizes = np.bincount(np.searchsorted(bounds, values, side="right"))
    assert len(sizes) == 32
    assert sizes == pytest.approx(np.full(32, 20_000 / 32), rel=0.1)


def test_few_distinct_numbers_have_a_bucket_each() -> None:
    assert boundaries(summarize_numbers(np.repeat([5.0, -1.0, 2.5], 100)), 32) == [2.5, 5.0]
    assert boundaries(DenseSummary((), 0.0, 1.0, is_whole=True), 32) == [0.0]


def test_a_list_repeats_the_column_whose_values_it_holds() -> None:
    draw = np.random.default_rng(0)
    items = draw.integers(1000, 1200, 5000).astype(np.uint64)
    columns = {
        "item": draw.integers(1000, 1200, 1000).astype(np.uint64),
        "user": draw.integers(0, 100_000, 1000).astype(np.uint64),
        "half": np.where(draw.random(1000) < 0.5, draw.integers(1000, 1200, 1000), 7).astype(np.uint64),
    }
    assert repeated_column(items, columns) == "item"
    assert repeated_column(items, {"user": columns["user"], "half": columns["half"]}) is None
    hours = {"hour": draw.integers(0, 24, 1000).astype(np.uint64)}
    assert repeated_column(draw.integers(0, 24, 1000).astype(np.uint64), hours) is None  # numbers of anything


def test_a_list_shares_the_vocabulary_of_its_column() -> None:
    """Unless it is typed otherwise, or has other settings."""
    seen = replace(summary(1000), repeated={"seen": "user"})
    assert choice(seen).encoding.shared == [["user", "seen"]]
    assert choice(seen, "encoding.shared=[[user,slot]]").encoding.shared == [["user", "slot"]]
    assert choice(seen, "encoding.min_count={user:3,shop:2,slot:2,seen:2}").encoding.shared is None
    assert choice(seen, "encoding.num_embeddings={user:1000}").encoding.shared is None
    assert choice(summary(1000)).encoding.shared is None


def test_chosen_settings_can_be_typed_and_give_the_same_dataset(
    shop: Path, auto: Path, tmp_path: Path
) -> None:
    made = read_manifest(auto)
    assert made.config["auto"]["seen"] == ROWS * 8 // 10
    assert made.config["encoding"]["crosses"] == [["shop", "slot"]]
    assert {"shop_x_slot", "shop_x_slot_target"} < {*table_of(made).column_names}
    typed = [
        f"{section}.{key}={as_typed(value, str)}"
        for section, keys in made.config["auto"]["keys"].items()
        for key in keys
        if (value := made.config[section][key]) is not None and key != "kind"
    ]
    run(tmp_path / "typed", *words(shop, f"encoding={made.config['encoding']['kind']}", *typed))
    skip = ["manifest.json"]
    assert content(auto, skip) == content(tmp_path / "typed", skip)
    manifests = [json.loads((name / "manifest.json").read_text()) for name in (auto, tmp_path / "typed")]
    for manifest in manifests:
        assert manifest.pop("config")
    assert manifests[0] == manifests[1]


def test_a_finished_dataset_is_found_by_its_settings(
    shop: Path, auto: Path, caplog: pytest.LogCaptureFixture
) -> None:
    count = read_manifest(auto).config["encoding"]["min_count"]
    for same in ([], [f"encoding.min_count={count}"], ["dense.target_columns=all"]):
        caplog.clear()
        with caplog.at_level(logging.INFO):
            run(auto, *words(shop, *same))
        assert "is finished already" in caplog.text
    with refused(ConfigError, "dense.target_columns", 'was "all", is null'):
        run(auto, *words(shop, "dense.target_columns=null"))


def test_a_resumed_run_has_the_choice_of_its_beginning(
    shop: Path, auto: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("dlrm_app.preprocessing.stages.Stages.encode", stop)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "k", *words(shop))
    monkeypatch.setattr("dlrm_app.preprocessing.choose.summarize_sample", stop)  # it need not look again
    assert run(tmp_path / "k", *words(shop)).config == read_manifest(auto).config
    assert content(tmp_path / "k") == content(auto)


def test_no_row_is_read_if_none_changes_the_choice(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise AssertionError("rows are looked at")

    numbers = ["dense.transform=log1p", "dense.bucket_columns=null"]
    with monkeypatch.context() as patched:
        patched.setattr("dlrm_app.preprocessing.choose.summarize_sample", stop)
        typed = [*numbers, "encoding=hash", "encoding.num_embeddings=100", "encoding.crosses=null"]
        made = run(tmp_path / "none", *words(shop, *typed, "dense.target_columns=null"))
    assert made.config["dense"]["bucket_boundaries"] == {}
    assert run(tmp_path / "none", *words(shop, *typed, "dense.target_columns=null")) == made  # it is found
    pq.write_table(pacsv.read_csv(shop / "shop.csv"), tmp_path / "shop.parquet")
    monkeypatch.setattr(look, "STUDIED_ROWS", 100)
    monkeypatch.setattr(choose_module, "STUDIED_ROWS", 100)
    monkeypatch.setattr(look, "read_sample", stop)
    files = [f"dataset={shop}/shop.yaml", f"input.train={tmp_path}/shop.parquet"]
    chosen = run(tmp_path / "footer", *words(shop, *numbers)[3:], *files).config
    assert (chosen["auto"]["rows"], chosen["auto"]["seen"]) == (ROWS * 9 // 10, 0)
    assert (chosen["encoding"]["kind"], chosen["dense"]["bucket_boundaries"]) == ("hash", {})


def test_a_new_day_takes_what_was_chosen(shop: Path, auto: Path, tmp_path: Path) -> None:
    made = read_manifest(auto)
    later = [f"dataset={shop}/shop.yaml", f"input.test={shop}/shop.csv", "encoding=from_dataset"]
    taken = run(tmp_path / "later", *later, f"encoding.path={auto}", *AUTO[1:])
    assert [c.transform for c in taken.dense] == [c.transform for c in made.dense]
    assert [c.encoding for c in taken.sparse] == [c.encoding for c in made.sparse]
    rows = table_of(taken, "test")
    assert rows.slice(ROWS * 9 // 10) == table_of(made, "test")


def test_a_look_at_a_large_file_is_spread_over_its_training_rows(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(look, "NUM_PIECES", 8)
    monkeypatch.setattr(look, "PIECE_BYTES", 2000)
    rising = [f"{number % 2},{number},1,1,1,{number},a,1,1" for number in range(20_000)]
    header = ",".join(column.name for column in COLUMNS)
    log = tmp_path / "log.csv"
    log.write_text("\n".join([header, *rising]) + "\n")
    files = [f"dataset={shop}/shop.yaml", f"input.train={log}", "split.test=0.2", "threads=3"]
    made = run(tmp_path / "k", *files, *AUTO).config
    assert made["auto"]["rows"] == pytest.approx(16_000, rel=0.05)
    assert made["auto"]["seen"] < 1000
    bounds = made["dense"]["bucket_boundaries"]["price"]
    assert min(bounds) < 3000
    assert 13_000 < max(bounds) < 16_500
