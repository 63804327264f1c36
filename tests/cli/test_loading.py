"""Garbage is left alone while modules are loaded, and collected again afterwards."""

import gc
import weakref
from collections.abc import Iterator
from typing import NoReturn

import pytest

from dlrm_app.cli import commands
from dlrm_app.cli.process import _loaded, loading


@pytest.fixture(autouse=True)
def _as_at_the_start() -> Iterator[None]:
    gc.unfreeze()
    _loaded.clear()
    yield
    gc.freeze()


class Circle:
    """Garbage that only a collection finds."""

    def __init__(self) -> None:
        self.me = self


def test_garbage_waits_until_imports_are_done() -> None:
    collections = []
    gc.callbacks.append(lambda phase, _: collections.append(phase))
    try:
        with loading():
            kept = [[] for _ in range(100_000)]  # type: ignore[var-annotated]
            assert not collections
        assert gc.get_freeze_count() > len(kept)
        later = weakref.ref(Circle())
        gc.collect()
        assert later() is None
    finally:
        gc.callbacks.pop()


def test_garbage_of_the_first_job_of_a_sweep_is_collected() -> None:
    with loading():
        pass
    left = weakref.ref(Circle())
    with loading():
        pass
    gc.collect()
    assert left() is None


def test_a_module_that_is_missing_leaves_collections_on() -> None:
    with pytest.raises(ModuleNotFoundError), loading():
        import no_such_module  # type: ignore[import-not-found]  # noqa: F401
    assert gc.isenabled()


@pytest.mark.parametrize("name", commands.COMMANDS)
def test_each_job_begins_by_loading(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise collections, which ``run`` turns off, would stay off."""

    def load() -> NoReturn:
        raise BlockingIOError("loading")

    monkeypatch.setattr(commands, "loading", load)
    with pytest.raises(BlockingIOError, match="loading"):
        commands.run_job(name, None, {}, [])
