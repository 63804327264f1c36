"""A context has the columns that all rows of a request share: the scores are those of rows that repeat it."""

import json
from pathlib import Path

import numpy as np
import pytest

import dlrm_app as dlrm
from dlrm_app.errors import DataError
from dlrm_app.inference.predict.model import Model
from dlrm_app.inference.serve.request import MAX_REPEATED, RequestError, Row, ScoringRequest
from dlrm_app.inference.serve.scoring import ServedExport, open_served
from tests.inference.serve.test_server import json_rows
from tests.inference.shop import body_of
from tests.refusals import refused

USER = ("user", "last_items", "hour")


@pytest.fixture(scope="module")
def served(shop: Path) -> ServedExport:
    return open_served(shop / "export")


@pytest.fixture(scope="module")
def model(shop: Path) -> Model:
    return dlrm.load(shop / "export")


def parted(number: int, count: int) -> tuple[Row, list[Row], list[Row]]:
    """(the user's columns of a row, ``count`` candidates, the same candidates with these columns)."""
    rows = json_rows()
    context = {name: rows[number].get(name) for name in USER}
    candidates = [{name: row[name] for name in row if name not in USER} for row in rows[:count]]
    return context, candidates, [{**row, **context} for row in candidates]


def test_a_context_gives_the_scores_of_rows_that_repeat_it(served: ServedExport) -> None:
    """To the bit, derived columns of both included, beside requests of other users."""
    parts = [parted(number, 40) for number in (0, 3, 7)]
    asked = [ScoringRequest(candidates, context) for context, candidates, _ in parts]
    whole = [ScoringRequest(rows) for _, _, rows in parts]
    assert served.score([asked[0], whole[1], asked[2]]) == [served.score([each])[0] for each in whole]


def test_a_rows_own_column_counts(served: ServedExport) -> None:
    """Also where it is null, which is a missing value; rows without it have that of the context."""
    context, candidates, _ = parted(0, 3)
    candidates[1] = {**candidates[1], "user": "u7"}
    candidates[2] = {**candidates[2], "user": None}
    repeated = [{**context, **row} for row in candidates]
    assert served.score([ScoringRequest(candidates, context)]) == served.score([ScoringRequest(repeated)])


def test_rows_may_add_nothing_to_the_context(served: ServedExport) -> None:
    row = json_rows()[0]
    whole = {column.name: row.get(column.name) for column in served.requests.spec.columns}
    assert served.score([ScoringRequest([{}, {}], whole)]) == served.score([ScoringRequest([row, row])])


def test_requests_with_a_context_are_read(served: ServedExport) -> None:
    context, candidates, _ = parted(0, 2)
    body = body_of(candidates)[:-1] + b', "context": ' + body_of([context])[10:-2] + b"}"
    assert served.requests.read(body, 10) == ScoringRequest(candidates, context)
    for given, reason in (
        (b'{"context": {}, "rows": [{}], "x": 1}', "the body must be"),
        (b'{"context": [], "rows": [{}]}', "context: must be an object of columns and their values"),
        (b'{"context": {"price": {}}, "rows": [{}]}', "context: price must be a single value"),
        (b'{"context": {"cost": 1}, "rows": [{}]}', "context: 'cost' is not a column of the model"),
        (b'{"context": {"price": 1, "price": 2}, "rows": [{}]}', "'price' is given twice"),
    ):
        with pytest.raises(RequestError, match=reason):
            served.requests.read(given, 10)


def test_lists_of_a_context_are_limited_in_all_rows_together(served: ServedExport) -> None:
    """A short request could fill all memory otherwise."""
    rows = 4096
    for size, is_refused in ((MAX_REPEATED // rows, False), (MAX_REPEATED // rows + 1, True)):
        body = json.dumps({"context": {"last_items": ["i1"] * size}, "rows": [{}] * rows}).encode()
        if is_refused:
            with pytest.raises(
                RequestError, match=f"{size:,} in each of 4,096 here: send fewer rows"
            ) as caught:
                served.requests.read(body, rows)
            assert caught.value.status == 413
        else:
            assert len(served.requests.read(body, rows)) == rows


def test_python_takes_a_context(model: Model) -> None:
    context, candidates, repeated = parted(0, 40)
    assert np.array_equal(model.predict(candidates, context=context), model.predict(repeated))
    own = [{**row, "user": "u7"} for row in candidates]
    assert np.array_equal(
        model.predict(own, context=context), model.predict([{**row, "user": "u7"} for row in repeated])
    )
    with refused(DataError, "context", "has colour, which the model does not read"):
        model.predict(candidates, context={**context, "colour": "red"})
