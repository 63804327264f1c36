"""The file of scores. Each part is written as soon as it is scored; all parts are joined at the end."""

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dlrm_app.dataset.arrow import array_of, numbers_of
from dlrm_app.distributed.ranks import Ranks
from dlrm_app.errors import DataError, DlrmError, Problem, first_problems
from dlrm_app.files import write_json, written_whole
from dlrm_app.inference.predict.parts import KEPT, NUMBER, PartTally, RejectedRow
from dlrm_app.inference.scorer import NO_SCORE, unscored
from dlrm_app.journal import RECORD, Journal
from dlrm_app.logs.rejects import MAX_SHOWN
from dlrm_app.records import Json, read_record
from dlrm_app.stores.parts import Send, are_apart, bring_all, is_apart, sent_files

ROW_GROUP_ROWS = 1 << 18
"""Small, because distillation reads row groups; not smaller, because each adds 800 bytes a column to the footer."""
LOGIT_OF, LABEL_OF = "logit:", "label:"
"""Prefixes of the columns of other labels in a part; in the file they are score_NAME and label_NAME."""
_RUN, _TABLE = "run.json", ".parquet"


def _no_rows(are_lists: bool) -> pa.Table:
    kind = pa.list_(pa.float32()) if are_lists else pa.float32()
    return pa.table({"logit": pa.array([], kind), NUMBER: pa.array([], pa.int64())})


def probabilities(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """The scores that dlrm-predict and dlrm-serve give for ``logits``: probabilities, rounded to float32."""
    with np.errstate(over="ignore"):  # 1 / (1 + inf) is 0, as it must be
        scores: NDArray[np.float32] = (1 / (1 + np.exp(-logits.astype(np.float64)))).astype(np.float32)
    return scores


def begun_tables(output: Path) -> list[str]:
    """The lake tables, with versions, of the interrupted command that made ``output``; empty if there are none."""
    try:
        run = json.loads((_parts_of(output) / _RUN).read_text(encoding="utf-8"))
        return list(run["input"]["tables"])
    except (OSError, ValueError, TypeError, KeyError):
        return []


def _parts_of(output: Path) -> Path:
    return output.with_name(f"{output.name}.parts")


class ScoresFile:
    """Writes ``output``. OUTPUT.parts, beside it until it is complete, holds the journal of the parts.

    ``origin_names``: the names of its columns for file and line. ``are_lists``: a row has a list of scores.
    """

    def __init__(self, output: Path, origin_names: tuple[str, str], *, are_lists: bool = False) -> None:
        self.output = output
        self._folder = _parts_of(output)
        self._journal = Journal(self._folder / "scored", PartTally)
        self._origin_names = origin_names
        self._no_rows = _no_rows(are_lists)
        self._send: Send | None = None

    def begin(self, identity: Json) -> bool:
        """Makes the folder of parts, or continues an existing one; returns True if it continues.

        Raises DlrmError if the existing parts have another ``identity``.
        """
        identity = json.loads(json.dumps(identity))
        path = self._folder / _RUN
        if path.is_file():
            before = read_record(path, Json, f"delete {self._folder}")
            if different := [key for key in identity if before.get(key) != identity[key]]:
                rule = f"holds scores of an interrupted command with another {' and '.join(different)}"
                raise DlrmError(Problem(str(self._folder), rule, "repeat that one, or delete the folder"))
            return True
        if self._folder.is_dir() and any(self._folder.glob("[!.]*")):
            rule = f"is needed for the parts of {self.output}, but holds other files"
            raise DlrmError(Problem(str(self._folder), rule, "give another output"))
        shutil.rmtree(self._folder, ignore_errors=True)
        self._journal.create()
        write_json(path, identity)
        return False

    def done(self) -> set[str]:
        """The names of the parts that are written."""
        return {*self._journal.done()}

    @contextmanager
    def of_rank(self, ranks: Ranks) -> Iterator["ScoresFile"]:
        """Yields what this rank writes its parts to. From another machine than the first rank's, which share only a
        store, they go there at once. Raises DlrmError.
        """
        if not is_apart(self._folder, ranks):
            yield self
            return
        own = copy(self)
        with sent_files(self._journal.folder, ranks.rank) as (folder, own._send):
            own._journal = Journal(folder, PartTally)
            yield own

    def write(self, name: str, chunks: Sequence[pa.Table], tally: PartTally) -> None:
        """Writes a part: logits, numbers, labels if there are any, and kept columns. Raises DataError."""
        part = self._journal.begin(name)
        with part.write(_TABLE) as temporary:
            pq.write_table(pa.concat_tables(chunks or [self._no_rows]), temporary)
        part.finish(tally)()
        if self._send is not None:
            self._send(self._journal.path(name, suffix).name for suffix in (_TABLE, RECORD))
            self._journal.forget(name)

    def tallies(self, ranks: Ranks) -> list[PartTally]:
        """The tally of each part, once all ``ranks`` have written theirs, with rejects numbered by the lines of their
        file. For the first rank. Raises DataError.
        """
        if are_apart(self._folder, ranks):
            bring_all(self._folder)
        return [
            replace(tally, rejects=[RejectedRow(start + line.line, line.reason) for line in tally.rejects])
            for _, start, tally in self._numbered()
        ]

    def finish(self) -> int:
        """Joins the parts into the final file and deletes them. Returns the number of rows. Raises DataError for rows
        of which the model computes no number.
        """
        rows, writer = 0, None
        with written_whole(self.output) as temporary:
            for path, start, tally in self._numbered():
                part = pq.read_table(path)
                _refuse_unscored(part, start, tally.origin)
                table = self._final(part, start, tally.origin)
                if len(table):
                    writer = writer or pq.ParquetWriter(temporary, table.schema, compression="zstd")
                    writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
                rows += len(table)
            if writer is None:
                pq.write_table(self._final(self._no_rows, 0, ""), temporary)
            else:
                writer.close()
        shutil.rmtree(self._folder)
        return rows

    def _numbered(self) -> Iterator[tuple[Path, int, PartTally]]:
        """Each part, in the order of the rows, with the number of its first line or row in its file."""
        origin, start = None, 0
        for name in self._journal.done():
            path, tally = self._journal.path(name, _TABLE), self._journal.load(name)
            if tally.origin != origin:
                origin, start = tally.origin, tally.first_number
            yield path, start, tally
            start += tally.num_lines

    def _final(self, part: pa.Table, start: int, origin: str) -> pa.Table:
        columns: dict[str, pa.Array] = {"score": _scores(part.column("logit"))}
        for name in part.column_names:
            if name.startswith(LOGIT_OF):
                columns[f"score_{name.removeprefix(LOGIT_OF)}"] = _scores(part.column(name))
        if "label" in part.column_names:
            columns["label"] = part.column("label")
        for name in part.column_names:
            if name.startswith(LABEL_OF):
                columns[f"label_{name.removeprefix(LABEL_OF)}"] = part.column(name)
        codes = array_of(np.zeros(len(part), np.int32))
        columns[self._origin_names[0]] = pa.DictionaryArray.from_arrays(codes, pa.array([origin]))
        columns[self._origin_names[1]] = array_of(numbers_of(part.column(NUMBER)) + start)
        kept = [name for name in part.column_names if name.startswith(KEPT)]
        columns |= {name.removeprefix(KEPT): part.column(name) for name in kept}
        return pa.table(columns)


def _scores(logits: pa.ChunkedArray) -> pa.Array:
    """The scores of ``logits``, or of lists of them."""
    ends, values = _values(logits)
    scores = array_of(probabilities(values))
    return scores if ends is None else pa.ListArray.from_arrays(array_of(ends), scores)


def _values(column: pa.ChunkedArray) -> tuple[NDArray[np.int32] | None, NDArray[np.float32]]:
    """(the ends of lists [R + 1], or None of numbers; the numbers)."""
    if not pa.types.is_list(column.type):
        return None, numbers_of(column)
    lists = column.combine_chunks()
    ends = numbers_of(lists.offsets)
    return ends - ends[0], numbers_of(lists.flatten())


def _refuse_unscored(part: pa.Table, start: int, origin: str) -> None:
    """Raises DataError if a logit of ``part`` is nan; its first row is number ``start`` of ``origin``."""
    logits = [_values(part[name]) for name in part.column_names if name.startswith("logit")]
    places, ends = unscored(np.stack([values for _, values in logits], axis=1)), logits[0][0]
    rows = places if ends is None else np.unique(np.searchsorted(ends, places, side="right") - 1)
    if len(rows):
        faults = [Problem(f"{origin}:{line}", NO_SCORE) for line in numbers_of(part[NUMBER])[rows] + start]
        raise DataError(Problem("the rows", "cannot all be scored"), *first_problems(faults, MAX_SHOWN))
