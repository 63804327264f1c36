"""A model in memory: scores of rows that Python has, and the torch module itself."""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from functools import cached_property
from pathlib import Path
from threading import RLock
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray
from torch import nn

from dlrm_app.dataset.manifest import Manifest
from dlrm_app.distributed.collectives import alone
from dlrm_app.distributed.ranks import Ranks
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.encoding.value_shares import deviation_text
from dlrm_app.errors import ConfigError, DataError, DlrmError, Problem, first_problems, refuse_if
from dlrm_app.forks import refuse_fork
from dlrm_app.inference.predict.parts import raw_spec
from dlrm_app.inference.predict.scores_file import probabilities
from dlrm_app.inference.raw_rows import RawRows
from dlrm_app.inference.scorer import NO_SCORE, Scorer, encoding_of, open_scorer, unscored
from dlrm_app.inference.scoring_model import trained_module
from dlrm_app.loader.rows import Rows
from dlrm_app.logs.parquet_columns import type_faults
from dlrm_app.logs.spec import Spec
from dlrm_app.model.plugins import load_plugins

logger = logging.getLogger(__name__)
BATCH_ROWS = 2048
"""Rows at a time: dlrm-predict's default (conf/predict.yaml), with which a row gets the same logit to the bit."""
MAX_SHOWN = 5
_ALONE = Ranks(rank=0, local_rank=0, world_size=1, local_world_size=1, device_type="cpu")
_ROWS = "the rows"


@dataclass(frozen=True)
class Model:
    """A model that scores raw rows, encoded as the rows that it was trained on. Opened by ``load_model``.

    It computes in the calling thread, with the threads of torch; other threads wait meanwhile. A copy, and a pickle
    in another process, is opened again from the same files, and refused if these hold another model by then.
    """

    scorer: Scorer
    manifest: Manifest
    """The encoding of its rows."""
    ema: bool = False
    plugins: Sequence[str] = ()
    _lock: RLock = field(default_factory=RLock, init=False, repr=False, compare=False)

    def __reduce__(self) -> tuple[Callable[..., "Model"], tuple[object, ...]]:
        return _reopen, (self.path, self.ema, [*self.plugins], self.scorer.identity)

    @property
    def path(self) -> Path:
        return self.scorer.path

    @property
    def labels(self) -> list[str]:
        """The names of several labels, the main one first; empty for a model of one."""
        return [*self.scorer.labels]

    @cached_property
    def _spec(self) -> Spec:
        return raw_spec(self.manifest).without_label()

    @cached_property
    def _rows(self) -> RawRows:
        return RawRows(self._spec, self.manifest, self.scorer.features)

    @property
    def columns(self) -> list[str]:
        """The raw columns that rows must have. Others are not read."""
        return [column.name for column in self._spec.columns if column.role != "ignore"]

    def predict(self, rows: object, batch_size: int = BATCH_ROWS) -> NDArray[np.float32]:
        """The probability of a click for each of ``rows``, in order, float32 [B]; as dlrm-predict writes them. Of a
        model of several labels, [B, L]: those of ``labels``.

        ``rows``: anything that Arrow reads, such as a pyarrow Table, a DataFrame of pandas or polars, a mapping of
        columns to lists, a list of mappings, or one row as a mapping or a Series of pandas. Values are as in the raw
        log; None and NaN are missing, and so is what a mapping leaves out. Raises ConfigError for columns that are
        missing or of another type, DataError for values that the log's format does not have.
        """
        refuse_fork()
        if not isinstance(batch_size, int) or batch_size < 1:
            raise ConfigError(Problem("batch_size", "must be a whole number from 1 on", value=batch_size))
        with self._lock:
            return self._predict(rows, batch_size)

    def _predict(self, rows: object, batch_size: int) -> NDArray[np.float32]:
        table = to_table(rows, self._spec)
        if not table.num_columns and hasattr(rows, "__len__") and len(rows):
            raise DataError(Problem(_ROWS, "have no columns", f"give {', '.join(self.columns)}"))
        scores = [np.empty((0, len(self.labels)) if self.labels else 0, np.float32)]
        if not len(table):
            return scores[0]
        score = self.scorer.of_rows(self.manifest, batch_size)
        for encoded, numbers in self._encoded(table):
            logits = score(encoded)
            _refuse([(int(number), NO_SCORE) for number in numbers[unscored(logits)]])
            scores.append(probabilities(logits))
        if found := self._rows.watch.news():
            logger.warning(deviation_text(found, "the rows that were scored so far"))
        return np.concatenate(scores)

    def _encoded(self, table: pa.Table) -> Iterator[tuple[Rows, NDArray[np.int64]]]:
        spec = self._spec.in_columns(
            table.column_names, False, _ROWS, "add them, with nulls where nothing is known"
        )
        refuse_if(type_faults(_ROWS, table.schema, table.column_names, spec))
        for rows, numbers, rejects in self._rows.read(table.select(self.columns).combine_chunks()):
            _refuse([(reject.line, f"has no score: {reject.reason}") for reject in rejects])
            yield rows, numbers

    @cached_property
    def module(self) -> nn.Module:
        """The trained torch module with whole tables, on the CPU, in eval mode: ``(dense [B, N], KeyedJaggedTensor) →
        logits [B, 1]``, or [B, L] of several labels.

        Its columns are ``manifest.dense`` and ``scorer.features``, in these orders. It is loaded when it is first used,
        and needs memory for all tables. Raises DlrmError for an export, which holds compiled code.
        """
        if self.scorer.trained is None:
            raise DlrmError(
                Problem(
                    str(self.path),
                    "is an export, which holds compiled code",
                    "load its checkpoint for a torch module",
                )
            )
        return trained_module(self.scorer.trained)


def _refuse(faults: Sequence[tuple[int, str]]) -> None:
    """Raises DataError with the first of ``faults`` (row, reason), if there are any."""
    if faults:
        problems = [Problem(f"row {number}", reason) for number, reason in faults]
        raise DataError(Problem(_ROWS, "cannot all be scored"), *first_problems(problems, MAX_SHOWN))


def load_model(path: Path, which: str = "newest", ema: bool = False, plugins: Sequence[str] = ()) -> Model:
    """Loads the export, run or checkpoint at ``path``, in this process alone. Raises DlrmError.

    ``which``: the checkpoint of a run: newest, or best (on val). ``ema``: the moving average of its dense weights.
    ``plugins``: files that register its architecture.
    """
    refuse_fork()
    plugins = load_plugins([str(Path(file).expanduser().absolute()) for file in plugins])
    with alone():
        scorer = open_scorer(
            path.absolute(), Runtime(**vars(_ALONE), num_threads=torch.get_num_threads()), which, ema
        )
        made = f"dlrm-export checkpoint={path} data.path=FOLDER output=EXPORT"
        cure = f"move it back, or load an export, which holds its encoding: {made}"
        return Model(scorer, scorer.check(encoding_of(scorer, cure)), ema, plugins)


def _reopen(path: Path, ema: bool, plugins: Sequence[str], identity: str) -> Model:
    """The model of a pickle. Raises DataError if ``path`` holds another one by now."""
    model = load_model(path, ema=ema, plugins=plugins)
    if model.scorer.identity != identity:
        rule = "holds another model than when it was pickled"
        raise DataError(Problem(str(path), rule, "pickle the model again, or load it by its path"))
    return model


def to_table(rows: object, spec: Spec) -> pa.Table:
    """``rows`` as a table. Raises DataError if Arrow cannot read them."""
    table = _as_table(rows, {column.name for column in spec.columns if column.separator is not None})
    for number, column in enumerate(table.columns):
        # pandas has NaN for a missing text too
        if pa.types.is_floating(column.type) and pc.all(pc.is_null(column, nan_is_null=True)).as_py():
            table = table.set_column(number, table.column_names[number], pa.nulls(len(table)))
    return table


def _as_table(rows: object, lists: Collection[str]) -> pa.Table:
    try:
        if isinstance(rows, pa.Table):
            return rows
        is_pandas = type(rows).__module__.partition(".")[0] == "pandas"
        if is_pandas and not hasattr(rows, "columns"):  # a Series
            rows = dict(cast(Any, rows))
        if isinstance(rows, Mapping):
            if not rows:
                return pa.table({})
            is_row = not any(
                _is_list(value) and (name not in lists or _holds_lists(value)) for name, value in rows.items()
            )
            return _table_of([rows]) if is_row else _table_of_columns(rows)
        if isinstance(rows, Sequence) and not isinstance(rows, str | bytes):
            return _table_of([dict(row) for row in rows])
        return pa.Table.from_pandas(rows, preserve_index=False) if is_pandas else pa.table(rows)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise DataError(
            Problem(_ROWS, f"cannot be read as a table ({' '.join(str(error).split())})")
        ) from error


def _table_of(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """A table of ``rows``. A key that some rows lack, the first one included, is a missing value there."""
    names = dict.fromkeys(name for row in rows for name in row)
    if rows and not names:
        raise ValueError("they have no columns")
    return pa.table({name: _array([row.get(name) for row in rows]) for name in names})


def _table_of_columns(columns: Mapping[str, Any]) -> pa.Table:
    """A table of ``columns``; a single value beside lists holds for every row."""
    rows = max(len(each) for each in columns.values() if _is_list(each))
    return pa.table({n: _array(each if _is_list(each) else [each] * rows) for n, each in columns.items()})


def _array(values: Any) -> Any:
    """``values`` for a table; in a list, NaN is missing among texts too. Arrow's type follows the first value of dates
    with and without times, and of flags among numbers: the first become times, the others are refused.
    """
    if not isinstance(values, list | tuple):
        return values
    types = {*map(type, values)}
    if {date, datetime} <= types:
        values = [datetime(*each.timetuple()[:3]) if type(each) is date else each for each in values]
    has_flags = bool(types & {bool, np.bool_})
    if has_flags and any(isinstance(each, float | np.floating) and each == each for each in values):
        raise TypeError(f"true or false among numbers, {values[:3]}")
    return pa.array(values, from_pandas=True)


def _is_list(value: object) -> bool:
    return not isinstance(value, str | bytes | Mapping) and hasattr(value, "__len__")


def _holds_lists(value: Any) -> bool:
    return any(_is_list(each) for each in value)
