"""Another export at the path, and a scorer that ends: requests always go to one that scores, if there can be one."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dlrm_app.errors import DataError
from dlrm_app.inference.serve import watch as watch_module
from dlrm_app.inference.serve.watch import Watch


class FakeScorer:
    """Ends when a test says so."""

    def __init__(self, identity: str, folder: str) -> None:
        self.served = SimpleNamespace(identity=identity, folder=folder)
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.is_closed = False

    async def drain(self) -> None:
        assert not self.is_closed

    async def close(self) -> None:
        self.is_closed = True


class Seen:
    """What a Watch of ``folder`` opens, the next of ``outcomes`` each time, and what it counts."""

    def __init__(self, folder: Path, outcomes: list[str | Exception]) -> None:
        self.swaps: list[bool] = []
        self.ends = 0
        self.opened: list[Any] = []
        self._outcomes = outcomes
        self.watch = Watch(folder, self.open, self)  # type: ignore[arg-type]

    async def open(self, path: Path) -> Any:
        outcome = self._outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        self.opened.append(FakeScorer(outcome, str(path.resolve())))
        return self.opened[-1]

    def swapped(self, is_taken: bool) -> None:
        self.swaps.append(is_taken)

    def scorer_ended(self) -> None:
        self.ends += 1

    @property
    def identity(self) -> str:
        return self.watch.current.served.identity


def run(seen_of: Callable[[], Seen], steps: Callable[[Seen], Awaitable[Any]], seconds: float | None) -> Any:
    async def main() -> Any:
        seen = seen_of()
        await seen.watch.start()
        watching = asyncio.create_task(seen.watch.run(seconds))
        try:
            return await steps(seen)
        finally:
            watching.cancel()

    return asyncio.run(main())


async def until(is_so: Callable[[], Any]) -> None:
    for _ in range(1000):
        if is_so():
            return
        await asyncio.sleep(0.01)
    pytest.fail("it never was")


def test_an_export_that_is_refused_leaves_the_first_and_the_watch(tmp_path: Path) -> None:
    file = tmp_path / "export.json"
    file.write_text("")

    async def steps(seen: Seen) -> None:
        for number, identity in ((1, "first"), (2, "third")):
            file.write_text("x" * number)
            await until(lambda number=number: len(seen.swaps) == number)
            assert seen.identity == identity
        await until(lambda: seen.opened[0].is_closed)
        assert (seen.swaps, seen.ends, seen.watch.refused) == ([False, True], 0, None)

    run(lambda: Seen(tmp_path, ["first", DataError("damaged"), "third"]), steps, 0.01)


def test_a_scorer_that_ends_is_started_again_with_its_own_export(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    link = tmp_path / "link"
    link.symlink_to("first")

    async def steps(seen: Seen) -> None:
        link.unlink()
        link.symlink_to("second")  # which nobody has looked at yet
        seen.opened[0].ended.set_result("was ended by SIGKILL")
        await until(lambda: len(seen.opened) == 2)
        assert seen.opened[1].served.folder == str(tmp_path / "first")
        await until(lambda: seen.watch.failure is None)
        assert seen.ends == 1

    run(lambda: Seen(link, ["first", "first"]), steps, None)


def test_one_that_ends_over_and_over_is_left_until_somebody_asks(tmp_path: Path) -> None:
    (tmp_path / "export.json").write_text("")
    number = watch_module.MAX_RESTARTS + 1

    async def steps(seen: Seen) -> None:
        for start in range(1, number + 1):
            await until(lambda start=start: len(seen.opened) == start and not seen.watch.failure)
            seen.opened[-1].ended.set_result("ended with exit code 1")
        await until(lambda: seen.ends == number)
        assert seen.watch.failure.startswith(
            "the process that scores ended with exit code 1, the last of 4 within"
        )
        await asyncio.sleep(0.05)
        assert len(seen.opened) == number
        seen.watch.ask()
        await until(lambda: seen.watch.failure is None)
        assert seen.identity == "mended"

    run(lambda: Seen(tmp_path, ["broken"] * number + ["mended"]), steps, None)
