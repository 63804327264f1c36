"""Requests at the same time are one batch; limits hold; a failure reaches those who wait, and nobody else."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from dlrm_app.inference.serve.request import RequestError, ScoringRequest
from dlrm_app.inference.serve.scoring import Answer, Batcher


async def one_each(requests: Sequence[ScoringRequest]) -> list[Answer]:
    return [{"click": [float(str(row["x"])) for row in request.rows]} for request in requests]


def rows_of(*values: int) -> ScoringRequest:
    return ScoringRequest([{"x": value} for value in values])


def scores_of(answers: Sequence[Answer]) -> list[list[float]]:
    return [answer["click"] for answer in answers if isinstance(answer, dict)]


def run(
    work: Callable[[Batcher], Awaitable[Any]], score: Any = one_each, **settings: Any
) -> tuple[Any, list[int]]:
    """(what ``work`` gives, the rows of each batch)."""
    sizes: list[int] = []

    async def main() -> Any:
        keys = {"max_rows": 4, "max_wait": 0.0, "max_queued": 100, **settings}
        batcher = Batcher(score, on_batch=sizes.append, **keys)
        task = asyncio.create_task(batcher.run())
        try:
            return await work(batcher)
        finally:
            task.cancel()

    return asyncio.run(main()), sizes


def test_concurrent_requests_are_scored_in_batches() -> None:
    async def work(batcher: Batcher) -> Any:
        requests = [rows_of(1), rows_of(2, 3), rows_of(4, 5), rows_of(6, 7, 8, 9, 10, 11), rows_of(12)]
        return await asyncio.gather(*(batcher.score(rows, 10) for rows in requests))

    answers, sizes = run(work)
    assert scores_of(answers) == [[1.0], [2.0, 3.0], [4.0, 5.0], [6.0, 7.0, 8.0, 9.0, 10.0, 11.0], [12.0]]
    assert sizes == [3, 2, 6, 1]


def test_the_first_rank_waits_for_others_up_to_a_limit() -> None:
    async def work(batcher: Batcher) -> Any:
        first = asyncio.create_task(batcher.score(rows_of(1), 10))
        await asyncio.sleep(0.05)
        return await asyncio.gather(first, batcher.score(rows_of(2), 10))

    for settings, expected in (({"max_wait": 5.0, "max_rows": 2}, [2]), ({"max_wait": 0.001}, [1, 1])):
        answers, sizes = run(work, **settings)
        assert (scores_of(answers), sizes) == ([[1.0], [2.0]], expected)


def test_a_full_queue_refuses_and_a_long_wait_is_reported() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(requests: Sequence[ScoringRequest]) -> list[Answer]:
        begun.set()
        await go_on.wait()
        return await one_each(requests)

    async def work(batcher: Batcher) -> Any:
        first = asyncio.create_task(batcher.score(rows_of(1), 10))
        await begun.wait()
        late = asyncio.create_task(batcher.score(rows_of(2, 3), 0.01))
        await asyncio.sleep(0)
        with pytest.raises(RequestError, match=r"2 rows wait, limits\.queued_rows=3") as full:
            await batcher.score(rows_of(4, 5), 10)
        with pytest.raises(RequestError, match=r"not scored within limits\.seconds=0\.01") as too_late:
            await late
        go_on.set()
        return await first, full.value.status, too_late.value.status

    answer, sizes = run(work, slow, max_queued=3)
    assert answer == ({"click": [1.0]}, 503, 503)
    assert sizes == [1]  # the rows that nobody waits for are not scored


def test_a_failure_reaches_its_waiters_and_later_ones_are_scored() -> None:
    async def fail(requests: Sequence[ScoringRequest]) -> list[Answer]:
        if requests[0] == rows_of(1):
            raise RuntimeError("no more memory")
        return await one_each(requests)

    async def work(batcher: Batcher) -> Any:
        with pytest.raises(RuntimeError, match="no more memory"):
            await batcher.score(rows_of(1), 10)
        return await batcher.score(rows_of(2), 10)

    assert run(work, fail) == ({"click": [2.0]}, [1, 1])
