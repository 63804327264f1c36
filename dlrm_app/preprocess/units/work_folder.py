"""OUTPUT/.work: what is kept of a run until its dataset is finished.

OUTPUT/.work/plan.json   the configuration and input that the work belongs to
OUTPUT/.work/<pass>/     the journal of a pass
OUTPUT/.work/lock        held by the process at work
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from dlrm_app.errors import ConfigError, DataError
from dlrm_app.files import code_checksum, held_lock, write_json
from dlrm_app.preprocess.units.journal import Journal, R
from dlrm_app.preprocess.units.source import Source
from dlrm_app.records import from_json

WORK = ".work"
VERSION = 2
"""Of all records of a run; raise it whenever one of them changes."""


@cache
def own_code() -> str:
    """The checksum of dlrm_app/preprocess/."""
    return code_checksum(Path(__file__).resolve().parents[1])


@dataclass(frozen=True)
class RunRecord:
    """What decides the work of a run.

    ``encoding``: the fingerprint of the dataset at encoding.path. ``damaged``: paths of files that may be replaced.
    ``code``: the checksum of the code at work: what another one has encoded must not be mixed with it.
    """

    config: dict[str, Any]
    sources: tuple[Source, ...]
    encoding: str | None
    damaged: tuple[str, ...] = ()
    code: str = field(default_factory=own_code)
    version: int = VERSION


def read_run(output: Path) -> RunRecord | None:
    """The run that OUTPUT/.work belongs to, if one was begun. Raises ConfigError if another version began it."""
    path = _run_path(output)
    if not path.exists():
        return None
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        if (version := value.get("version")) != VERSION:
            raise ConfigError(
                [
                    f"{output} holds an unfinished dataset of another version of dlrm-preprocess (its records are "
                    f"version {version}, these are {VERSION}): delete {output} and start again"
                ]
            )
        run = from_json(RunRecord, value)
    except (ValueError, AttributeError) as error:
        raise DataError(f"{path} is damaged ({error}): delete {output} and start again") from error
    if run.code != own_code():
        raise ConfigError(
            [
                f"{output} holds an unfinished dataset of another version of dlrm-preprocess, which may encode in another "
                f"way: delete {output} and start again, or finish it with that version"
            ]
        )
    return run


def write_run(output: Path, run: RunRecord) -> None:
    write_json(_run_path(output), asdict(run))


def _run_path(output: Path) -> Path:
    return output / WORK / "plan.json"


def open_keys(output: Path, before: RunRecord) -> list[str]:
    """The settings that may still change, for no work that is kept depends on them.

    They are those that a refusal may tell to change; ``redo_vocabularies`` must follow a change of the encoding.
    """
    begun = {path.parent.name for path in (output / WORK).glob("*/*.json")}
    keys = ["rejects.max_fraction"]
    if begun <= {"lines"}:
        keys += ["split"]
    if begun <= {"lines", "study", "vocab"}:
        keys += ["dense.target_columns"]
    if begun <= {"lines", "study", "vocab"} and before.config["encoding"]["kind"] == "vocab":
        keys += [f"encoding.{name}" for name in ("kind", "num_embeddings", "min_count", "top_k")]
    return keys


def redo_vocabularies(output: Path) -> None:
    """Forgets the vocabularies; what they are made of, the counts of values, is kept."""
    shutil.rmtree(output / WORK / "vocab", ignore_errors=True)
    shutil.rmtree(output / "vocab", ignore_errors=True)


def expect_another_file(output: Path, source: Source) -> None:
    """Notes that a source was damaged, so that the run goes on with another file in its place."""
    run = read_run(output)
    assert run is not None
    write_run(output, replace(run, damaged=(*run.damaged, source.path)))


def open_journal(output: Path, name: str, record: type[R]) -> Journal[R]:
    """The journal of pass ``name``, begun or gone on with."""
    folder = output / WORK / name
    folder.mkdir(parents=True, exist_ok=True)
    return Journal(folder, record)


def passes_over(output: Path, source: int) -> set[Path]:
    """The folders of the passes in which something has landed of a source."""
    return {path.parent for path in (output / WORK).glob(f"*/{source:05d}-*")}


def remove_temporary_files(output: Path) -> None:
    """Deletes half-written files of a killed run or worker; ours is the only run, for it holds the lock."""
    for pattern in (".*.tmp", "*/.*.tmp", f"{WORK}/*/.*.tmp"):
        for path in output.glob(pattern):
            path.unlink()


@contextmanager
def locked(output: Path) -> Iterator[None]:
    """Holds OUTPUT for this process; the lock goes when the process does, however it ends."""
    (output / WORK).mkdir(parents=True, exist_ok=True)
    refusal = f"another dlrm-preprocess is working on output={output}: wait for it or end it"
    with held_lock(output / WORK / "lock", refusal):
        yield
