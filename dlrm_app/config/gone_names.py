"""Names of choices that earlier versions had, and what replaces each."""

import re
from typing import NamedTuple


class _Gone(NamedTuple):
    """Choices whose ``group=choice`` matches ``pattern``; ``cure`` may use the pattern's groups."""

    pattern: str
    rule: str
    cure: str


_GONE = (
    _Gone(
        r"dataset=criteo_(weighted|orders|histories|orders_weighted|histories_weighted|orders_histories|practice)",
        "is written by dlrm-generate beside its log",
        "give that file, as dataset=LOG.tsv.yaml",
    ),
    _Gone(
        r"(?:experiment|tables|model)=merlin_(tiny|small|medium|large|jumbo|colossal)",
        "is a part of a preset now",
        r"give merlin=\1, and optimizer=, model= or single keys where they differ",
    ),
)


def replacement(name: str) -> tuple[str, str] | None:
    """(rule, cure) for ``name``, ``group=choice``, of an earlier version; None for any other."""
    for gone in _GONE:
        if found := re.fullmatch(gone.pattern, name):
            return gone.rule, found.expand(gone.cure)
    return None
