"""A model in memory: scores of rows that Python has, and the torch module itself."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from threading import RLock

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import nn

from dlrm_app.dataset.manifest import Manifest
from dlrm_app.distributed.collectives import alone
from dlrm_app.distributed.process_state import own_torch
from dlrm_app.distributed.ranks import Ranks
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.encoding.value_shares import deviation_text
from dlrm_app.errors import ConfigError, DataError, DlrmError, Problem, first_problems, refuse_if
from dlrm_app.forks import is_fork, refuse_fork
from dlrm_app.inference.predict.parts import raw_spec
from dlrm_app.inference.predict.python_rows import ROWS, context_table, to_table
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

    def __reduce__(self) -> tuple[Callable[..., "Model | _ModelInFork"], tuple[object, ...]]:
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

    def predict(
        self, rows: object, batch_size: int = BATCH_ROWS, context: Mapping[str, object] | None = None
    ) -> NDArray[np.float32]:
        """The probability of a click for each of ``rows``, in order, float32 [B]; as dlrm-predict writes them. Of a
        model of several labels, [B, L]: those of ``labels``.

        ``rows``: a table of pyarrow, pandas or polars, a mapping of columns to lists or arrays, mappings or records in
        a list or from a generator, or one row as a mapping or a Series of pandas. Values are as in the raw
        log; None and NaN are missing, and so is what a mapping leaves out. ``context``: columns that all rows share,
        such as those of the user whose candidates the rows are; what a row has itself counts before it. Raises
        ConfigError for columns that are missing or of another type, DataError for values that the log's format does
        not have.
        """
        refuse_fork()
        if not isinstance(batch_size, int) or batch_size < 1:
            raise ConfigError(Problem("batch_size", "must be a whole number from 1 on", value=batch_size))
        with self._lock, own_torch():
            return self._predict(rows, batch_size, context or {})

    def _predict(self, rows: object, batch_size: int, context: Mapping[str, object]) -> NDArray[np.float32]:
        table = to_table(rows, self._spec, context)
        shared = context_table(context, table, self._spec)
        if not table.num_columns and hasattr(rows, "__len__") and len(rows):
            raise DataError(Problem(ROWS, "have no columns", f"give {', '.join(self.columns)}"))
        scores = [np.empty((0, len(self.labels)) if self.labels else 0, np.float32)]
        if not len(table):
            return scores[0]
        score = self.scorer.of_rows(self.manifest, batch_size)
        for encoded, numbers in self._encoded(table, shared):
            logits = score(encoded)
            _refuse([(int(number), NO_SCORE) for number in numbers[unscored(logits)]])
            scores.append(probabilities(logits))
        if found := self._rows.watch.news():
            logger.warning(deviation_text(found, "the rows that were scored so far"))
        return np.concatenate(scores)

    def _encoded(self, table: pa.Table, shared: pa.Table | None) -> Iterator[tuple[Rows, NDArray[np.int64]]]:
        schema = pa.schema([*table.schema, *(shared.schema if shared is not None else [])])
        spec = self._spec.in_columns(schema.names, False, ROWS, "add them, with nulls where nothing is known")
        refuse_if(type_faults(ROWS, schema, schema.names, spec))
        for rows, numbers, rejects in self._rows.read(self._read_ones(table), shared):
            _refuse([(reject.line, f"has no score: {reject.reason}") for reject in rejects])
            yield rows, numbers

    def _read_ones(self, table: pa.Table) -> pa.Table:
        """The columns of ``table`` that are read."""
        return table.select([name for name in self.columns if name in table.column_names]).combine_chunks()

    @cached_property
    def module(self) -> nn.Module:
        """The trained torch module with whole tables, on the CPU, in eval mode: ``(dense [B, N], KeyedJaggedTensor) →
        logits [B, 1]``, or [B, L] of several labels.

        Its columns are ``manifest.dense`` and ``scorer.features``, in these orders. It is loaded when it is first used,
        and needs memory for all tables. Raises DlrmError for an export, which holds compiled code.
        """
        if self.scorer.trained is None:
            cure = "load its checkpoint for a torch module"
            raise DlrmError(Problem(str(self.path), "is an export, which holds compiled code", cure))
        return trained_module(self.scorer.trained)


def _refuse(faults: Sequence[tuple[int, str]]) -> None:
    """Raises DataError with the first of ``faults`` (row, reason), if there are any."""
    if faults:
        problems = [Problem(f"row {number}", reason) for number, reason in faults]
        raise DataError(Problem(ROWS, "cannot all be scored"), *first_problems(problems, MAX_SHOWN))


def load_model(path: Path, which: str = "newest", ema: bool = False, plugins: Sequence[str] = ()) -> Model:
    """Loads the export, run or checkpoint at ``path``, in this process alone. Raises DlrmError.

    ``which``: the checkpoint of a run: newest, or best (on val). ``ema``: the moving average of its dense weights.
    ``plugins``: files that register its architecture.
    """
    refuse_fork()
    plugins = load_plugins([str(Path(file).expanduser().absolute()) for file in plugins])
    with alone(), own_torch():
        scorer = open_scorer(
            path.absolute(), Runtime(**vars(_ALONE), num_threads=torch.get_num_threads()), which, ema
        )
        made = f"dlrm-export checkpoint={path} data.path=FOLDER output=EXPORT"
        cure = f"move it back, or load an export, which holds its encoding: {made}"
        return Model(scorer, scorer.check(encoding_of(scorer, cure)), ema, plugins)


class _ModelInFork:
    """A model that was opened from a pickle in a fork, where it cannot compute. An error while a worker of a pool reads
    its task would end the worker, and the pool would wait for ever: so the error comes when the model is called.
    """

    def predict(self, *_: object, **__: object) -> NDArray[np.float32]:
        """Raises DlrmError."""
        refuse_fork()
        raise AssertionError("this is no fork")

    def __getattr__(self, name: str) -> object:
        refuse_fork()
        raise AttributeError(name)


def _reopen(path: Path, ema: bool, plugins: Sequence[str], identity: str) -> "Model | _ModelInFork":
    """The model of a pickle. Raises DataError if ``path`` holds another one by now."""
    if is_fork():
        return _ModelInFork()
    model = load_model(path, ema=ema, plugins=plugins)
    if model.scorer.identity != identity:
        rule = "holds another model than when it was pickled"
        raise DataError(Problem(str(path), rule, "pickle the model again, or load it by its path"))
    return model
