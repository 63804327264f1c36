"""Reads the beginning of a log as a proposed description says: what it would reject."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import yaml

from dlrm_app.config.datasets import DatasetConfig
from dlrm_app.errors import DataError, Problem
from dlrm_app.logs.arrow_rows import open_cursor
from dlrm_app.logs.beginning import source_spec
from dlrm_app.logs.labels import with_one_label
from dlrm_app.logs.parquet_columns import names_of, parquet_spec
from dlrm_app.logs.read_spec import read_spec
from dlrm_app.logs.rejects import MAX_SHOWN, RejectedLine
from dlrm_app.logs.sources.feeds import InputUnit
from dlrm_app.logs.sources.parquet_units import ParquetFeed
from dlrm_app.logs.sources.source import InputFile
from dlrm_app.logs.sources.text_units import TextFeed
from dlrm_app.logs.spec import Cures, Spec
from dlrm_app.text import percent

UNIT_BYTES = 8 << 20
_ROWS = 1 << 14
MOST = 0.05
"""The largest share of rejected lines; a description that rejects more is not written."""


def rejected_share(sources: Sequence[InputFile], description: str) -> tuple[float, list[RejectedLine]]:
    """(the share of the first rows of ``sources`` that ``description``, a dataset's YAML, rejects; the first of these).

    Raises ConfigError for a description that does not fit at all, and DataError for one that rejects too many rows.
    """
    described = read_spec(with_one_label(DatasetConfig(**yaml.safe_load(description))))
    num_rows, num_rejects, first, shown = 0, 0, list[RejectedLine](), list[Problem]()
    for source in sources:
        look = parquet_spec
        if source.format != "parquet":
            look, source = source_spec, replace(source, quoting=described.quoting)
        spec = look(source, described, None, Cures("input.unlabelled"))
        for unit in _first_unit(source, spec, UNIT_BYTES // len(sources)):
            cursor = open_cursor(unit, spec)
            for _ in cursor.rows(_ROWS, None):
                pass
            rejects = cursor.take_rejects()
            num_rows, num_rejects = num_rows + cursor.line, num_rejects + len(rejects)
            first += rejects[:MAX_SHOWN]
            shown += [
                Problem(f"{source.path}:{each.line + 1 + spec.header}", each.reason)
                for each in rejects[:MAX_SHOWN]
            ]
    share = num_rejects / max(num_rows, 1)
    if share > MOST:
        rule = f"has values that a description of its columns rejects, in {percent(share)} of its rows"
        name = str(sources[0].path) + " and others" * (len(sources) > 1)
        raise DataError(Problem(name, rule, "correct them, and check again"), *shown[:MAX_SHOWN])
    return share, first


def _first_unit(source: InputFile, spec: Spec, size: int) -> Iterator[InputUnit]:
    if source.format == "parquet":
        return iter(ParquetFeed(source, names_of(source, spec), size, (0,)).items())
    return iter(TextFeed(source, size, last=1).items())
