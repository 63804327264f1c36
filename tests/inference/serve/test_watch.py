"""Another export at the path: whatever is wrong with it, the one that is served goes on, and the next is taken up."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dlrm_app.inference.serve.watch import Watch


@pytest.mark.parametrize("error", [ValueError("no number"), MemoryError(), KeyError("proofs")])
def test_any_error_of_another_export_leaves_the_first_and_the_watch(tmp_path: Path, error: Exception) -> None:
    file, swaps = tmp_path / "export.json", list[bool]()
    opened: list[Any] = [SimpleNamespace(identity="first"), error, SimpleNamespace(identity="third")]

    def open_next(_: Path) -> Any:
        export = opened.pop(0)
        if isinstance(export, Exception):
            raise export
        return export

    async def change_twice() -> list[str]:
        watching = asyncio.create_task(watch.run(0.01))
        served = []
        for number in (1, 2):
            file.write_text("x" * number)
            for _ in range(1000):
                if len(swaps) == number:
                    break
                await asyncio.sleep(0.01)
            served.append(watch.current.identity)
        watching.cancel()
        return served

    file.write_text("")
    watch = Watch(tmp_path, open_next, lambda: None, swaps.append)
    assert asyncio.run(change_twice()) == ["first", "third"]
    assert swaps == [False, True]
