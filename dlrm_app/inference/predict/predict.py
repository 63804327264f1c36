"""dlrm-predict: scores every row of a dataset's split or of raw logs, a part at a time, on any number of ranks."""

import logging
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from dlrm_app.config.predict import PredictConfig, keep_problems
from dlrm_app.dataset.arrow import array_of, numbers_of
from dlrm_app.dataset.manifest import MANIFEST, Manifest, label_of, read_manifest
from dlrm_app.distributed.ranks import Ranks
from dlrm_app.distributed.runtime import start_runtime
from dlrm_app.encoding.own_clicks import own_click_share
from dlrm_app.encoding.row_samples import KnownShare
from dlrm_app.encoding.value_shares import deviation_text, deviations
from dlrm_app.errors import refuse_if
from dlrm_app.files import explained_disk_errors
from dlrm_app.inference.predict.parts import LENGTH, DatasetParts, Part, PartTally, RawParts
from dlrm_app.inference.predict.scores_file import LABEL_OF, LOGIT_OF, ScoresFile, begun_tables
from dlrm_app.inference.scorer import Scorer, encoding_of, open_scorer
from dlrm_app.journal import REPEAT
from dlrm_app.loader.prefetch import prefetch_items
from dlrm_app.loader.reader import TableReader
from dlrm_app.loader.rows import Rows, arrange
from dlrm_app.locks import held_output
from dlrm_app.logs.rejects import MAX_SHOWN, refuse_rejects
from dlrm_app.logs.sources.lake import with_versions
from dlrm_app.logs.sources.units import MIB
from dlrm_app.records import Json
from dlrm_app.result import Paragraph, Result
from dlrm_app.text import bullets, percent

logger = logging.getLogger(__name__)

_PREFETCHED = 1
"""Parts that are read ahead while one is scored."""

_ScoreRows = Callable[[Rows], dict[str, pa.Array]]
"""Rows → the columns of their logits."""
_ReadChunk = tuple[Rows, pa.Table]
"""(rows in memory, columns to write beside their scores: those of a Chunk, and labels if there are any)."""


@dataclass(frozen=True)
class Predictions(Result):
    """The scores of ``rows`` rows in the file ``path``, made in ``seconds`` by all ranks."""

    path: Path
    rows: int
    seconds: float

    def paragraphs(self) -> Iterable[Paragraph]:
        speed = self.rows / self.seconds
        yield f"{self.rows:,} scores in {self.path}, {self.seconds:.1f} s, {speed:,.0f} rows/s"


def predict(config: PredictConfig) -> Predictions:
    """Scores rows according to ``config``. Raises DlrmError."""
    output = Path(config.output)
    with (
        start_runtime(config.threads, job="predict", on_cpu=True) as runtime,
        explained_disk_errors(output, REPEAT),
    ):
        started = time.perf_counter()
        model = open_scorer(Path(config.model), runtime, config.which, config.ema)
        others = [f"{column}_{label}" for label in model.labels[1:] for column in ("score", "label")]
        refuse_if(keep_problems(config.keep, others))
        manifest = runtime.together(_open_columns, model, config)
        reader = TableReader(manifest, model.features)
        inputs = runtime.on_first(_with_versions, config.input, output)
        source = runtime.together(_open_source, config, inputs, manifest, reader)
        scores = ScoresFile(output, source.origin_names, are_lists=bool(config.candidates))
        identity = {"model": model.identity, "input": source.identity, "batch_size": config.batch_size}
        with runtime.entered_on_first(held_output(output, "dlrm-predict")):
            done = runtime.on_first(_begin, scores, identity)
            if isinstance(source, RawParts):
                runtime.on_first(source.warn_of_odd_columns)
            score_rows = _columns_of(model, manifest, config.batch_size)
            runtime.together(_score_parts, source, reader, score_rows, scores, done, runtime)
            tallies = runtime.on_first(scores.tallies, runtime)
            runtime.together(_refuse_rejects, tallies, config.rejects.max_fraction)
            _warn_of_own_clicks(tallies, source)
            _warn_of_unusual_values(tallies, source, Path(config.encoding or model.encoding))
            rows = runtime.on_first(scores.finish)
        return Predictions(output, rows, time.perf_counter() - started)


def _open_columns(model: Scorer, config: PredictConfig) -> Manifest:
    """The manifest that rows are read by, as the model reads it, without its label if ``labels`` is false.

    Raises DataError for labels that are not there, and for columns that the model cannot read.
    """
    given = config.data.path or config.encoding
    manifest = read_manifest(Path(given)) if given else encoding_of(model, "add encoding=FOLDER")
    if config.labels and config.data.path is not None:
        label_of(manifest, config.split)
    return model.check(replace(manifest, label=None) if config.labels is False else manifest)


def _with_versions(inputs: list[str], output: Path) -> list[str]:
    """Names each lake table's version, which all ranks read; a continued command reads its earlier versions."""
    return with_versions("input", inputs, begun_tables(output))


def _open_source(
    config: PredictConfig, inputs: list[str], manifest: Manifest, reader: TableReader
) -> DatasetParts | RawParts:
    if config.data.path is not None:
        return DatasetParts(manifest, config.split, reader)
    return RawParts(inputs, config.labels, manifest, config.unit_mib * MIB, config.keep, config.candidates)


def _begin(scores: ScoresFile, identity: Json) -> set[str]:
    """The parts that an interrupted command has written."""
    if scores.begin(identity):
        logger.info("%s is unfinished: continuing where it stopped", scores.output)
    return scores.done()


def _columns_of(model: Scorer, manifest: Manifest, batch_size: int) -> _ScoreRows:
    score = model.of_rows(manifest, batch_size)
    names = ["logit", *(f"{LOGIT_OF}{label}" for label in model.labels[1:])]

    def score_rows(rows: Rows) -> dict[str, pa.Array]:
        logits = score(rows).reshape(len(rows), len(names))  # also of no rows
        return {name: array_of(np.ascontiguousarray(logits[:, k])) for k, name in enumerate(names)}

    return score_rows


def _score_parts(
    source: DatasetParts | RawParts,
    reader: TableReader,
    score_rows: _ScoreRows,
    scores: ScoresFile,
    done: set[str],
    ranks: Ranks,
) -> None:
    def is_wanted(name: str, number: int) -> bool:
        return number % ranks.world_size == ranks.rank and name not in done

    with (
        scores.of_rank(ranks) as own,
        closing(prefetch_items(_read(source.parts(is_wanted), reader), _PREFETCHED)) as read,
    ):
        for part, chunks in read:
            scored = [_with_columns(*_by_row(beside, score_rows(rows))) for rows, beside in chunks]
            own.write(part.name, scored, part.tally)


def _by_row(beside: pa.Table, logits: dict[str, pa.Array]) -> tuple[pa.Table, dict[str, pa.Array]]:
    """Makes lists of the logits of candidates, one for each row of ``beside``, if it says how many a row has."""
    if LENGTH not in beside.column_names:
        return beside, logits
    offsets = array_of(np.concatenate([[0], np.cumsum(numbers_of(beside[LENGTH]))]).astype(np.int32))
    lists = {name: pa.ListArray.from_arrays(offsets, values) for name, values in logits.items()}
    return beside.drop_columns([LENGTH]), lists


def _with_columns(table: pa.Table, columns: Mapping[str, pa.Array]) -> pa.Table:
    for name, values in columns.items():
        table = table.append_column(name, values)
    return table


def _read(parts: Iterator[Part], reader: TableReader) -> Generator[tuple[Part, list[_ReadChunk]], None, None]:
    for part in parts:
        chunks = []
        for table, beside in part.read(part.tally):
            has_label = reader.label in table.column_names
            columns = reader.read(table, part.tally.origin, has_label=has_label)
            if has_label:
                main, *others = columns.supervision
                beside = _with_columns(beside, {"label": array_of(main)})
                of_others = {
                    f"{LABEL_OF}{name}": pa.array(values, from_pandas=True).cast(pa.uint8())
                    for name, values in zip(reader.other_labels, others, strict=True)
                }
                beside = _with_columns(beside, of_others)
            chunks.append((arrange(columns, None), beside))
        yield part, chunks


def _warn_of_own_clicks(tallies: list[PartTally], source: DatasetParts | RawParts) -> None:
    """Warns of raw rows whose own clicks are in the target columns that encode them."""
    learnt = source.learnt if isinstance(source, RawParts) else None
    if learnt is None:
        return
    known = sum((KnownShare(tally.num_sampled, tally.num_learnt) for tally in tallies), KnownShare())
    if (share := own_click_share(known, learnt)) is not None:
        logger.warning(
            "about %s of these rows are training rows, whose target columns contain their own clicks: "
            "metrics of new rows are worse; for honest scores of training rows give data.path=DATASET split=train",
            percent(share),
        )


def _warn_of_unusual_values(
    tallies: list[PartTally], source: DatasetParts | RawParts, encoding: Path
) -> None:
    """Warns of rows whose values differ from those of ``encoding``; does nothing if that dataset is gone."""
    if not (encoding / MANIFEST).is_file():
        return
    if found := deviations(read_manifest(encoding).usual_values, source.values(tallies)):
        logger.warning(deviation_text(found, "these rows"))


def _refuse_rejects(tallies: list[PartTally], max_fraction: float) -> None:
    """Warns of malformed lines. Raises DataError if their share of all lines is above ``max_fraction``."""
    num_lines, num_rejects = sum(t.num_lines for t in tallies), sum(t.num_rejects for t in tallies)
    if not num_rejects:
        return
    rejects = [(t.origin, each.line, each.reason) for t in tallies for each in t.rejects]
    cure = "correct them, or raise it and run the command again; it continues with what is scored"
    refuse_rejects(num_rejects, num_lines, max_fraction, rejects, cure)
    first = [f"{file}:{line}: {reason}" for file, line, reason in rejects[:MAX_SHOWN]]
    text = f"{num_rejects:,} of {num_lines:,} lines are malformed and have no score"
    logger.warning(f"{text}:\n{bullets(first)}")
