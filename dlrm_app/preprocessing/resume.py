"""Finds what OUTPUT holds: this dataset, finished; work that can be continued; or something else, which is refused."""

import logging
import shutil
from collections.abc import Sequence
from pathlib import Path

from dlrm_app.dataset.encoding_files import verify_encoding_files
from dlrm_app.dataset.manifest import MANIFEST, Manifest, read_manifest
from dlrm_app.dataset.shard_files import verify_shards
from dlrm_app.errors import ConfigError, DataError, DlrmError, Problem, first_problems, refuse_if
from dlrm_app.files import is_file, output_problems
from dlrm_app.logs.sources.source import has_changed, other_input_problems
from dlrm_app.preprocessing.choose import with_all_choices, with_choices
from dlrm_app.preprocessing.passes.plan import InputPlan
from dlrm_app.preprocessing.request import DatasetPlan, Request, kept_settings, plan_dataset
from dlrm_app.preprocessing.work.work_folder import (
    WORK,
    BegunRun,
    begun_passes,
    begun_sources,
    forget_passes,
    open_keys,
    other_code_problems,
    read_run,
    remove_temporary_files,
    write_run,
)
from dlrm_app.records import Json, leaves
from dlrm_app.text import in_brief

logger = logging.getLogger(__name__)

_MAX_DIFFERENCES = 8
"""Differing settings that an error shows."""
_FREE_KEYS = ["dataset.published_rows", "auto"]
"""Settings that may differ from those of a finished dataset."""


def finished_dataset(request: Request) -> Manifest | None:
    """The manifest if OUTPUT holds exactly this dataset, finished. Raises DlrmError if it holds another one."""
    output = request.inputs.output
    if not is_file(output / MANIFEST):
        refuse_if(output_problems("output", output, is_folder=True))
        if output.exists() and any(output.iterdir()) and not (output / WORK).is_dir():
            raise ConfigError(
                Problem(f"output={output}", "exists and is not a dataset folder", "give another name")
            )
        return None
    manifest = read_manifest(output)
    state, sources = "a finished dataset", request.inputs.sources
    typed = kept_settings(with_choices(request.config, manifest.config))
    read = {source.path: source for source in manifest.sources}
    versions = {path: source.version for path, source in read.items()}
    refuse_if(
        _other_setting_problems(manifest.config, typed, output, state, _FREE_KEYS)
        or other_input_problems(versions, sources, output, state)
        or [
            Problem(
                str(source.path),
                "has other bytes than were read, of the same size and date",
                f"delete {output} and run the same command",
            )
            for source in sources
            if has_changed(source, read[source.path])
        ]
    )
    try:
        verify_shards(manifest)
        verify_encoding_files(manifest)
    except DlrmError as error:
        again = f"or delete {output} and run the same command to make it again"
        summary, *details = error.problems
        raise DataError(summary.also(again), *details) from error
    shutil.rmtree(output / WORK, ignore_errors=True)  # left by a run that ended just before deleting it
    logger.info(f"{output} is finished already; nothing to do")
    return manifest


def begin_work(request: Request) -> tuple[DatasetPlan, bool]:
    """Begins the work in OUTPUT, or continues that of an earlier run. Returns (the plan, True if it continues).

    Raises ConfigError if OUTPUT holds finished work of another run.
    """
    output = request.inputs.output
    problems = other_code_problems(output)
    if not problems and (before := read_run(output)) is not None:
        plan, run = _plan(request, before.config)
        problems = _other_run_problems(before, run, request.inputs)
        if not problems:
            logger.info(f"{output} is unfinished: continuing where it stopped")
            remove_temporary_files(output)
            if before.config["encoding"] != run.config["encoding"]:
                forget_passes(output, "vocab", "waiting")  # the counts that they are made from are kept
            write_run(output, run)
            return plan, True
    if problems:
        if begun_passes(output):
            raise ConfigError(*problems)
        logger.info(f"{output} is unfinished, without work that could be kept: starting again")
        forget_passes(output)
    plan, run = _plan(request, {})
    write_run(output, run)
    return plan, False


def _plan(request: Request, before: Json) -> tuple[DatasetPlan, BegunRun]:
    """The plan for ``request``, and its record; choices are those of an earlier run, whose settings were ``before``."""
    plan = plan_dataset(request, *with_all_choices(request, before))
    fingerprint = request.base.fingerprint() if request.base else None
    return plan, BegunRun(plan.settings(), request.inputs.sources, fingerprint)


def _other_run_problems(before: BegunRun, now: BegunRun, plan: InputPlan) -> list[Problem]:
    """The differences of the unfinished run ``before`` from ``now``.

    Files without finished units may have been replaced, for example damaged ones.
    """
    output, state = plan.output, "an unfinished dataset"
    versions = {source.path: source.version for source in before.sources}
    begun = begun_sources(output)
    for source in plan.sources:
        if source.path in versions and source.index not in begun:
            versions[source.path] = source.version
    problems = _other_setting_problems(before.config, now.config, output, state, open_keys(output, before))
    problems = problems or other_input_problems(versions, plan.sources, output, state)
    if before.encoding != now.encoding and not problems:
        encoding = now.config["encoding"]
        key = "path" if encoding["path"] else "grow_from"
        problems = [
            Problem(f"encoding.{key}={encoding[key]}", "has changed", f"delete {output} to start again")
        ]
    return problems


def _other_setting_problems(
    before: Json, now: Json, output: Path, state: str, free_keys: Sequence[str]
) -> list[Problem]:
    """The keys that differ. ``state``: a description of ``output``.

    ``free_keys`` and the keys under them may differ.
    """
    old, new = dict(leaves(before)), dict(leaves(now))
    problems = [
        Problem(key, f"was {in_brief(old.get(key))}, is {in_brief(new.get(key))}")
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key) and not f"{key}.".startswith(tuple(f"{name}." for name in free_keys))
    ]
    cure = "give the same values, or another output=, or delete it"
    hint = Problem(f"output={output}", f"holds {state} of another configuration", cure)
    return [*first_problems(problems, _MAX_DIFFERENCES), hint] if problems else []
