"""A column for the reader of Arrow tables: how it is read, its values, and its bad rows."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlrm_app.logs.codes import kind_code
from dlrm_app.logs.rejects import bad_value, unlike_sizes
from dlrm_app.logs.spec import LogColumn

KeysOrNumbers = NDArray[np.uint64] | NDArray[np.float64]
"""Keys or numbers."""


class ReadValues(NamedTuple):
    """R values of a column: numbers or keys, the state of each, and where their texts lie ([R, 2], or [0, 2])."""

    values: KeysOrNumbers
    states: NDArray[np.uint8]
    spans: NDArray[np.int64]


class Fault(NamedTuple):
    """A column with bad values: True for each row with one. ``sizes``: where these are the numbers of its elements,
    those of each row's weights and of its list, [R].
    """

    column: LogColumn
    is_bad: NDArray[np.bool_]
    sizes: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None

    def reason(self, row: int, value: str) -> str:
        """The reason why ``row``, whose text in the column is ``value``, is left out."""
        if self.sizes is None:
            return bad_value(self.column, value)
        weights, elements = self.sizes
        return unlike_sizes(self.column, int(weights[row]), int(elements[row]))


class Reading(NamedTuple):
    """How a column is read.

    ``codes``: the column's codes, by ``column_codes``.
    ``content``: the code of its content.
    ``nulls``: its null words.
    """

    column: LogColumn
    codes: NDArray[np.int64]
    content: int
    nulls: tuple[str, ...]

    def of_weights(self) -> "Reading":
        """How the weights within a list are read."""
        column = self.column.written_weights
        content, codes = kind_code(column), self.codes.copy()
        codes[0] = content
        return Reading(column, codes, content, self.nulls)
