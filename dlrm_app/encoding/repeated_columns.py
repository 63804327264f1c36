"""Finds list columns that repeat the values of another column, such as a history of items."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from dlrm_app.logs.strings import MISSING_KEY

_MANY_VALUES = 50
_MOSTLY = 0.7


def repeated_column(items: NDArray[np.uint64], columns: Mapping[str, NDArray[np.uint64]]) -> str | None:
    """The name of the column whose values the ``items`` of lists repeat; None if there is none.

    ``columns``: name → keys. Most items must be values of the column, and most rows of the column must have a value of
    the lists. There must be many common values, because a number from 0 to 23 may be an hour or a category.
    """
    values, found = np.unique(items), []
    for name, keys in columns.items():
        present = keys[keys != MISSING_KEY]
        common = np.intersect1d(values, present)
        if len(common) >= _MANY_VALUES:
            shares = (np.isin(part, common).mean() for part in (items, present))
            found.append((min(shares), name))
    share, name = max(found, default=(0.0, ""))
    return name if share >= _MOSTLY else None
