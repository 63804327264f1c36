"""Raw rows as text: the format of the log that a model was trained on, and that of lines made from other forms of rows.

Whatever rows come in becomes lines, with separators that no value has, so that there is one parser and one rule.
"""

from dataclasses import replace

from dlrm_app.config.preprocess import DatasetConfig
from dlrm_app.dataset.manifest import Manifest
from dlrm_app.errors import DataError
from dlrm_app.preprocess.read.spec import Column, Spec, read_spec

FIELD, ITEM = "\x1f", "\x1e"
"""What stands between the fields of a row, and between the items of a list."""
BREAKING = frozenset("\x1e\x1f\n\r")
"""Characters that a value cannot hold, in text as here."""


def raw_spec(manifest: Manifest) -> Spec:
    """The format of the files that the dataset of ``manifest`` was made of. Raises DataError where it does not say."""
    if "dataset" not in manifest.config:
        raise DataError(
            f"{manifest.path} was not made of raw logs, so their format is not known: give data.path=, an encoded dataset"
        )
    return read_spec(DatasetConfig(**manifest.config["dataset"]))


def text_spec(spec: Spec) -> Spec:
    """``spec`` as a TextEncoder's lines have it: the columns that are read, between separators of their own."""
    columns = tuple(_in_text(column) for column in spec.columns if column.role != "ignore")
    return replace(spec, delimiter=FIELD, quote=None, header=False, columns=columns)


def _in_text(column: Column) -> Column:
    return column if column.separator is None else replace(column, separator=ITEM)
