"""``dlrm.load``: rows of any kind get the scores that dlrm-predict writes, and the module is the trained one."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from numpy.typing import NDArray

import dlrm_app as dlrm
from dlrm_app.dataset.manifest import read_manifest
from dlrm_app.errors import ConfigError, DataError
from dlrm_app.inference.predict.model import Model
from dlrm_app.loader.batch import EvalBatches
from dlrm_app.logs.first_rows import TimeWatch
from dlrm_app.logs.spec import LogColumn
from tests.inference.conftest import predicted
from tests.inference.shop import NUM_TEST, draw_rows
from tests.inference.test_predict import parquet_columns
from tests.refusals import refused


@pytest.fixture(scope="module")
def model(shop: Path) -> Model:
    return dlrm.load(shop / "run")


@pytest.fixture(scope="module")
def rows() -> pa.Table:
    return pa.table(parquet_columns(draw_rows()[-NUM_TEST:]))


@pytest.fixture(scope="module")
def expected(shop: Path, tmp_path_factory: pytest.TempPathFactory) -> NDArray[np.float32]:
    """The scores that dlrm-predict writes for the same rows as text."""
    output = tmp_path_factory.mktemp("scores") / "scores.parquet"
    scores: NDArray[np.float32] = predicted(output, f"model={shop}/run", f"input={shop}/test.csv")[
        "score"
    ].to_numpy()
    return scores


FORMS: dict[str, Callable[[pa.Table], Any]] = {
    "pyarrow": lambda table: table,
    "pandas": lambda table: table.to_pandas(),
    "polars": pl.from_arrow,
    "mapping of lists": lambda table: table.to_pydict(),
    "mapping of arrays": lambda table: {name: table[name].combine_chunks() for name in table.column_names},
    "list of mappings": lambda table: table.to_pylist(),
    "record batch": lambda table: table.combine_chunks().to_batches()[0],
    "other columns": lambda table: table.append_column("page", pa.array(["x"] * len(table))),
}


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_rows_of_any_form_get_the_bits_of_predict(
    form: str, model: Model, rows: pa.Table, expected: NDArray[np.float32]
) -> None:
    scores = model.predict(FORMS[form](rows))
    assert scores.dtype == np.float32
    assert scores.tobytes() == expected.tobytes()


def test_a_rows_bits_do_not_depend_on_the_rows_beside_it(
    model: Model, rows: pa.Table, expected: NDArray[np.float32]
) -> None:
    alone = [model.predict(row) for row in rows.slice(0, 40).to_pylist()]
    assert np.concatenate(alone).tobytes() == expected[:40].tobytes()


def test_an_export_scores_as_its_checkpoint(
    shop: Path, rows: pa.Table, expected: NDArray[np.float32]
) -> None:
    export = dlrm.load(shop / "export")
    assert np.abs(export.predict(rows) - expected).max() < 1e-6
    with refused(
        dlrm.DlrmError,
        str(shop / "export"),
        "is an export, which holds compiled code",
        "load its checkpoint...",
    ):
        export.module  # noqa: B018


def test_missing_values_and_no_rows_are_scored(model: Model) -> None:
    nothing = dict.fromkeys(model.columns)
    assert 0 < float(model.predict(nothing)[0]) < 1
    assert model.predict(pa.table({name: pa.array([], pa.null()) for name in model.columns})).shape == (0,)


def test_a_missing_text_may_be_nan(model: Model, rows: pa.Table) -> None:
    row = next(row for row in rows.to_pylist() if row["user"] is None)
    assert model.predict({**row, "user": float("nan")}).tobytes() == model.predict(row).tobytes()


def test_rows_that_do_not_fit_are_refused_by_name(model: Model, rows: pa.Table) -> None:
    with refused(
        dlrm.ConfigError,
        "the rows",
        "lacks the columns price; it has user, hour, last_items, clicked, item, shown_at",
    ):
        model.predict(rows.drop_columns("price"))
    with refused(
        dlrm.ConfigError,
        "the rows: column price",
        "is list<item: double>, which a dense column of kind float cannot be read from: it...",
    ):
        model.predict({**rows.to_pydict(), "price": [[1.0]] * len(rows)})
    with refused(dlrm.DataError, "row 2", "has no score: ..."):
        model.predict({**rows.slice(0, 3).to_pydict(), "hour": ["1", "2", "noon"]})
    with refused(dlrm.DataError, "the rows", "are of the class int", "give a DataFrame..."):
        model.predict(7)
    with refused(
        dlrm.DataError,
        "the rows",
        "have columns of different lengths: ...",
    ):
        model.predict({**rows.to_pydict(), "price": [1.0]})


def test_pandas_rows_with_missing_values_score_like_text(
    model: Model, rows: pa.Table, expected: NDArray[np.float32]
) -> None:
    frame = pd.DataFrame(rows.to_pylist())  # None and NaN, as a user builds a frame by hand
    assert frame["hour"].isna().any()
    assert model.predict(frame).tobytes() == expected.tobytes()


def test_the_module_is_the_trained_model_with_whole_tables(shop: Path, model: Model) -> None:
    manifest = read_manifest(shop / "dataset")
    with EvalBatches(manifest, "test", model.scorer.features, batch_size=NUM_TEST) as batches:
        batch = next(iter(batches))
    with torch.no_grad():
        logits = model.module(batch.dense_features, batch.sparse_features)
    written = predicted(shop.parent / "module.parquet", f"model={shop}/run", f"data.path={shop}/dataset")
    scores = written["score"].to_numpy()
    assert np.abs(torch.sigmoid(logits.squeeze(1)).numpy()[: len(scores)] - scores).max() < 1e-6
    assert not model.module.training


def test_a_path_that_is_not_a_model_is_refused(tmp_path: Path) -> None:
    with refused(dlrm.DlrmError, ".../nowhere", "does not exist"):
        dlrm.load(tmp_path / "nowhere")


@pytest.mark.parametrize("step", [1, -1])
def test_rows_are_scored_alike_in_any_order_of_rows_and_keys(
    model: Model, rows: pa.Table, expected: NDArray[np.float32], step: int
) -> None:
    given = [
        {key: row[key] for key in sorted(row, reverse=place % 2 > 0) if row[key] is not None}
        for place, row in enumerate(rows.to_pylist())
    ]
    assert any(len(row) < len(rows.column_names) for row in given)
    assert model.predict(given[::step]).tobytes() == expected[::step].tobytes()
    assert model.predict(tuple(given)).tobytes() == expected.tobytes()


def test_a_series_of_pandas_is_a_row(model: Model, rows: pa.Table, expected: NDArray[np.float32]) -> None:
    frame = rows.to_pandas().iloc[:20]
    series = [row for _, row in frame.iterrows()]
    assert [float(model.predict(row)[0]) for row in series] == expected[:20].tolist()
    assert model.predict(series).tobytes() == expected[:20].tobytes()


@pytest.mark.parametrize(
    "nothing",
    [
        [],
        (),
        {},
        pd.DataFrame(),
        pd.DataFrame({"user": []}),
        pl.DataFrame(),
        pa.table({}),
        {"user": [], "hour": []},
    ],
    ids=lambda rows: type(rows).__name__,
)
def test_no_rows_have_no_scores(model: Model, nothing: Any) -> None:
    assert model.predict(nothing).shape == (0,)


def test_values_of_several_types_are_refused_in_any_order(model: Model, rows: pa.Table) -> None:
    for values in ([True, 1.5], [1.5, True], [1, "a"], ["a", 1], [2**70, 1]):
        with refused(dlrm.DataError, "the rows: column hour", "holds ..."):
            model.predict(
                [{**row, "hour": v} for row, v in zip(rows.slice(0, 2).to_pylist(), values, strict=True)]
            )


def test_one_value_beside_lists_is_that_of_every_row(model: Model, rows: pa.Table) -> None:
    whole = rows.slice(0, 3).to_pydict()
    for name, value in (("user", "abc"), ("item", "xyz"), ("price", 1.5)):
        repeated = model.predict({**whole, name: [value] * 3})
        assert model.predict({**whole, name: value}).tolist() == repeated.tolist()


def test_rows_without_columns_and_batches_without_rows_are_refused(model: Model, rows: pa.Table) -> None:
    for given in ([{}], [{}, {}], pd.DataFrame(index=range(3))):
        with pytest.raises(DataError, match="have no columns"):
            model.predict(given)
    for size in (0, -1, 7.0, None):
        with refused(ConfigError, "batch_size", "must be a whole number from 1 on", value=size):
            model.predict(rows, batch_size=size)  # type: ignore[arg-type]


def test_threads_get_the_scores_of_their_own_rows(model: Model, rows: pa.Table) -> None:
    parts = [rows.slice(start, length) for start in range(0, 60, 7) for length in (1, 5, 40)]
    expected = [model.predict(part).tolist() for part in parts]
    with ThreadPoolExecutor(8) as pool:
        assert [found.tolist() for found in pool.map(model.predict, parts * 3)] == expected * 3


def test_lists_and_flags_may_begin_with_what_is_missing(model: Model, rows: pa.Table) -> None:
    (row,) = rows.slice(0, 1).to_pylist()
    held = {**row, "last_items": [None, "3"]}
    assert model.predict(held).tolist() == model.predict([held]).tolist()


def test_the_state_of_torch_does_not_change_scores(shop: Path, model: Model, rows: pa.Table) -> None:
    some = rows.slice(0, 50)
    alone = model.predict(some)
    with torch.autocast("cpu", torch.bfloat16):
        assert np.array_equal(model.predict(some), alone)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.inference_mode():
            assert np.array_equal(dlrm.load(shop / "run").predict(some), alone)
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_times_in_another_unit_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    watch = TimeWatch([LogColumn("at", "time", "milliseconds")])
    seconds = np.arange(1_795_000_000, 1_795_000_040, dtype=np.float64)  # November 2026
    watch.add(seconds[None])
    assert not caplog.messages
    watch = TimeWatch([LogColumn("at", "time", "milliseconds")])
    for some in np.split(seconds / 1e3, 4):  # seconds, read as milliseconds
        watch.add(some[None])
    assert caplog.messages == ["at: all times lie in January 1970: take kind: seconds"]
    watch.add(seconds[None] / 1e3)
    assert len(caplog.messages) == 1
