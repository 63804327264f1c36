"""OUTPUT/.work: the finished work of a run, kept until its dataset is complete.

OUTPUT/.work/plan.json   the configuration and input that the work belongs to
OUTPUT/.work/<pass>/     the journal of a pass; a unit's name is a ``UnitName``
OUTPUT/.work/lock        held by the working process
OUTPUT/.work/ranks/      where ranks meet that share the work (``meeting``)
"""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import TypeVar

from dlrm_app.checksums import code_checksum
from dlrm_app.dataset.manifest import MANIFEST, read_manifest
from dlrm_app.errors import DlrmError, Problem, refuse_if
from dlrm_app.files import is_file, write_json
from dlrm_app.journal import Journal, R
from dlrm_app.locks import held_lock, unlink_unlocked
from dlrm_app.logs.sources.source import InputFile
from dlrm_app.logs.sources.units import UnitName
from dlrm_app.records import Json, read_record

WORK, PLAN, RANKS = ".work", "plan.json", "ranks"
T = TypeVar("T")


def pass_journal(output: Path, name: str, record: type[R]) -> Journal[R]:
    """The journal of pass ``name``."""
    return Journal(output / WORK / name, record).create()


def begun_passes(output: Path, source: int | None = None) -> set[str]:
    """The passes with finished units, of one source or of any."""
    found = [(path.parent.name, path.stem) for path in (output / WORK).glob("*/*.json")]
    return {name for name, unit in found if source is None or source in _sources_of(unit)}


def begun_sources(output: Path) -> set[int]:
    """The sources with finished units."""
    return {source for path in (output / WORK).glob("*/*.json") for source in _sources_of(path.stem)}


def _sources_of(unit: str) -> Sequence[int]:
    name = UnitName.parse(unit)
    return name.sources if name is not None else ()


@cache
def own_code() -> str:
    """The checksum of the code that decides a dataset's bytes."""
    package = Path(__file__).resolve().parents[2]
    return "".join(
        code_checksum(package / folder)
        for folder in ("preprocessing", "encoding", "logs", "dataset", "kernels")
    )


@dataclass(frozen=True)
class BegunRun:
    """The configuration and input of a run.

    ``encoding``: the fingerprint of the dataset at encoding.path.
    ``code``: the checksum of the code, because units of different versions must not be mixed.
    """

    config: Json
    sources: tuple[InputFile, ...]
    encoding: str | None
    code: str = field(default_factory=own_code)


def read_run(output: Path) -> BegunRun | None:
    """The run that OUTPUT/.work belongs to, if there is one. Raises ConfigError if another version began it."""
    refuse_if(other_code_problems(output))
    return _read_plan(output, BegunRun) if is_file(output / WORK / PLAN) else None


def begun_config(output: Path) -> Json:
    """The configuration of the dataset in OUTPUT, finished or not; empty if there is none that can be continued."""
    try:
        run = read_manifest(output) if is_file(output / MANIFEST) else read_run(output)
    except DlrmError:  # reported when the output is opened
        run = None
    return run.config if run else {}


def other_code_problems(output: Path) -> list[Problem]:
    """A problem if another version of the code began the work in OUTPUT."""
    if not is_file(output / WORK / PLAN) or _read_plan(output, Json).get("code") == own_code():
        return []
    rule = (
        "holds an unfinished dataset of another version of dlrm-preprocess, which may encode in another way"
    )
    return [Problem(f"output={output}", rule, "delete it and start again, or finish it with that version")]


def _read_plan(output: Path, kind: type[T]) -> T:
    return read_record(output / WORK / PLAN, kind, f"delete {output} and start again")


def write_run(output: Path, run: BegunRun) -> None:
    write_json(output / WORK / PLAN, asdict(run))


def open_keys(output: Path, before: BegunRun) -> list[str]:
    """The settings that may still change, because no finished work depends on them. Errors may ask to change these.

    After a change of the encoding, call ``forget_passes`` for vocabularies.
    """
    begun, keys = begun_passes(output), ["rejects.max_fraction", "dataset.published_rows", "auto"]
    if begun <= {"lines"}:
        keys += ["split", "sampling"]
    if begun <= {"lines", "times"}:
        keys += [f"split.{key}" for key in ("val", "test", "val_from", "test_from", "missing", "zone")]
    if begun <= {"lines", "times", "study", "vocab"}:
        keys += ["dense.target_columns"]
        if before.config["encoding"]["kind"] == "vocab":
            words = ("kind", "num_embeddings", "min_count", "top_k", "shared", "capacity")
            keys += [f"encoding.{word}" for word in words]
    return keys


def forget_passes(output: Path, *names: str) -> None:
    """Deletes the work of the passes ``names``, or of all passes, and the files that they made."""
    found = {path.name for path in (output / WORK).glob("*")} - {RANKS}
    for name in names or {"vocab", "waiting", "target", *found}:
        shutil.rmtree(output / WORK / name, ignore_errors=True)
        shutil.rmtree(output / name, ignore_errors=True)


def remove_temporary_files(output: Path) -> None:
    """Deletes unfinished files of a killed run or worker. This run holds the lock, so it is the only one."""
    for pattern in (".*.tmp", "*/.*.tmp", f"{WORK}/*/.*.tmp"):
        for path in output.glob(pattern):
            path.unlink()


def remove_idle_work(output: Path) -> None:
    """Deletes OUTPUT/.work if it has no finished work, and OUTPUT if nothing is left."""
    if not is_file(output / WORK / PLAN) or is_file(output / MANIFEST):
        shutil.rmtree(output / WORK, ignore_errors=True)
        with suppress(OSError):
            output.rmdir()


@contextmanager
def locked(output: Path, num_ranks: int = 1) -> Iterator[None]:
    """Locks OUTPUT for this process, and ``num_ranks`` - 1 others that follow it. The lock ends with the process.

    Raises DlrmError if another process works on OUTPUT: one that leads, or one that follows a process that has ended.
    """
    (output / WORK).mkdir(parents=True, exist_ok=True)
    refusal = f"another dlrm-preprocess is working on output={output}: wait for it or end it"
    with held_lock(output / WORK / "lock", refusal):
        for lock in (output / WORK / RANKS).glob("*.lock"):
            if int(lock.stem) >= num_ranks and not unlink_unlocked(lock):
                raise DlrmError(refusal)
        yield
