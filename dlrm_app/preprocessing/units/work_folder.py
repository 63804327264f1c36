"""OUTPUT/.work: the finished work of a run, kept until its dataset is complete.

OUTPUT/.work/plan.json   the configuration and input that the work belongs to
OUTPUT/.work/<pass>/     the journal of a pass; a unit's name is ``unit_name`` of its source and its number
OUTPUT/.work/lock        held by the working process
"""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from dlrm_app.dataset.manifest import MANIFEST, read_manifest
from dlrm_app.errors import DataError, DlrmError, refuse_if
from dlrm_app.files import code_checksum, held_lock, is_file, write_json
from dlrm_app.journal import Journal, R
from dlrm_app.preprocessing.units.source import InputFile
from dlrm_app.preprocessing.units.unit_text import source_prefix
from dlrm_app.records import from_json

WORK, _PLAN = ".work", "plan.json"
T = TypeVar("T")


def pass_journal(output: Path, name: str, record: type[R]) -> Journal[R]:
    """The journal of pass ``name``."""
    return Journal(output / WORK / name, record).create()


def begun_passes(output: Path, source: int | None = None) -> set[str]:
    """The passes with finished units, of one source or of any."""
    prefix = "" if source is None else source_prefix(source)
    return {path.parent.name for path in (output / WORK).glob(f"*/{prefix}*.json")}


@cache
def own_code() -> str:
    """The checksum of the code that decides a dataset's bytes: dlrm_app/preprocessing/ and dlrm_app/dataset/."""
    package = Path(__file__).resolve().parents[2]
    return code_checksum(package / "preprocessing") + code_checksum(package / "dataset")


@dataclass(frozen=True)
class BegunRun:
    """The configuration and input of a run.

    ``encoding``: the fingerprint of the dataset at encoding.path. ``code``: the checksum of the code in use; units
    from other versions must not be mixed with its own.
    """

    config: dict[str, Any]
    sources: tuple[InputFile, ...]
    encoding: str | None
    code: str = field(default_factory=own_code)


def read_run(output: Path) -> BegunRun | None:
    """The run that OUTPUT/.work belongs to, if there is one. Raises ConfigError if another version began it."""
    path = output / WORK / _PLAN
    refuse_if(other_code_problems(output))
    return _explained(path, lambda value: from_json(BegunRun, value)) if is_file(path) else None


def begun_config(output: Path) -> Mapping[str, Any]:
    """The configuration of the dataset in OUTPUT, finished or not; empty if there is none that can be continued."""
    try:
        run = read_manifest(output) if is_file(output / MANIFEST) else read_run(output)
    except DlrmError:  # reported when the output is opened
        run = None
    return run.config if run else {}


def other_code_problems(output: Path) -> list[str]:
    """A problem if another version of the code began the work in OUTPUT."""
    path = output / WORK / _PLAN
    if not is_file(path) or _explained(path, lambda value: value.get("code")) == own_code():
        return []
    fault = f"{output} holds an unfinished dataset of another version of dlrm-preprocess, which may encode in another way"
    return [f"{fault}: delete {output} and start again, or finish it with that version"]


def _explained(path: Path, read: Callable[[Any], T]) -> T:
    """``read`` of the JSON in ``path``. Raises DataError if it is damaged."""
    try:
        return read(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, AttributeError) as error:
        output = path.parents[1]
        raise DataError(f"{path} is damaged ({error}): delete {output} and start again") from error


def write_run(output: Path, run: BegunRun) -> None:
    write_json(output / WORK / _PLAN, asdict(run))


def open_keys(output: Path, before: BegunRun) -> list[str]:
    """The settings that may still change, because no finished work depends on them.

    They are the ones that an error may ask to change. After a change of the encoding, call ``forget_passes`` for vocabularies.
    """
    begun, keys = begun_passes(output), ["rejects.max_fraction", "dataset.published_rows", "auto"]
    if begun <= {"lines"}:
        keys += ["split"]
    if begun <= {"lines", "study", "vocab"}:
        keys += ["dense.target_columns"]
        if before.config["encoding"]["kind"] == "vocab":
            words = ("kind", "num_embeddings", "min_count", "top_k", "shared", "capacity")
            keys += [f"encoding.{word}" for word in words]
    return keys


def forget_passes(output: Path, *names: str) -> None:
    """Deletes the work of the passes ``names``, or of all passes, and the files that they made."""
    for name in names or {"vocab", "waiting", "target", *(path.name for path in (output / WORK).glob("*"))}:
        shutil.rmtree(output / WORK / name, ignore_errors=True)
        shutil.rmtree(output / name, ignore_errors=True)


def remove_temporary_files(output: Path) -> None:
    """Deletes unfinished files of a killed run or worker. This run holds the lock, so it is the only one."""
    for pattern in (".*.tmp", "*/.*.tmp", f"{WORK}/*/.*.tmp"):
        for path in output.glob(pattern):
            path.unlink()


@contextmanager
def locked(output: Path) -> Iterator[None]:
    """Locks OUTPUT for this process. The lock ends with the process."""
    (output / WORK).mkdir(parents=True, exist_ok=True)
    refusal = f"another dlrm-preprocess is working on output={output}: wait for it or end it"
    with held_lock(output / WORK / "lock", refusal):
        yield
