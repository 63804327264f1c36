"""dlrm-preprocess: looks at what is asked and what is there, then goes through the stages."""

import json
import logging
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from dlrm_app.config.preprocess import PreprocessConfig
from dlrm_app.dataset.manifest import MANIFEST, Manifest, read_manifest
from dlrm_app.dataset.shard_files import verify_shards
from dlrm_app.errors import ConfigError, DataError, DlrmError, refuse_if
from dlrm_app.files import explained_disk_errors, is_file, write_problems
from dlrm_app.kernels.compiled import compiling_seconds
from dlrm_app.preprocess.encode.columns import (
    check_columns,
    refuse_known_clicks,
    refuse_missing_files,
    with_known_transform,
)
from dlrm_app.preprocess.job.reject_limit import refuse_too_many_rejects
from dlrm_app.preprocess.job.stages import Stages
from dlrm_app.preprocess.job.summary import report
from dlrm_app.preprocess.read.first_line import check_first_lines
from dlrm_app.preprocess.read.spec import read_spec
from dlrm_app.preprocess.units.executor import Executor, LocalExecutor
from dlrm_app.preprocess.units.source import Source, find_sources, refuse_other_input
from dlrm_app.preprocess.units.work_folder import (
    WORK,
    RunRecord,
    locked,
    open_keys,
    read_run,
    redo_vocabularies,
    remove_temporary_files,
    write_run,
)
from dlrm_app.preprocess.units.work_plan import Plan, identity, make_plan, refuse_other_config

logger = logging.getLogger(__name__)

GO_ON = "then run the same command again; it goes on where it stopped"


def preprocess(config: PreprocessConfig) -> Manifest:
    """Makes the dataset that ``config`` describes, or goes on with it; gives its manifest.

    Raises ConfigError for what cannot work, DataError for damaged input, DlrmError for a full disk.
    """
    spec = read_spec(config.dataset)
    check_columns(config, spec)
    config = with_known_transform(config)
    sources = find_sources(config.input)
    refuse_known_clicks(config.encoding, sources)
    plan = make_plan(config, spec, sources)
    finished = _finished(config, plan)
    if finished is not None:
        return finished
    check_first_lines(plan)
    start, compiled = time.perf_counter(), compiling_seconds()
    with _executor(config) as executor, explained_disk_errors(plan.output, GO_ON), locked(plan.output):
        went_on = _open_work(config, plan)
        manifest = Stages(config, plan, executor).run()
        remove_temporary_files(plan.output)
        shutil.rmtree(plan.output / WORK)
    report(manifest, time.perf_counter() - start - compiling_seconds() + compiled, went_on=went_on)
    return manifest


@contextmanager
def _executor(config: PreprocessConfig) -> Iterator[Executor]:
    if config.executor == "local":
        yield LocalExecutor(config.threads)
        return
    from dlrm_app.preprocess.units.dask_executor import open_cluster  # Dask is an extra

    with open_cluster(config.dask) as executor:
        yield executor


def _finished(config: PreprocessConfig, plan: Plan) -> Manifest | None:
    """The manifest if OUTPUT holds this very dataset; refuses to touch another one."""
    output = plan.output
    if not is_file(output / MANIFEST):
        refuse_if(write_problems("output", output))
        if output.exists() and (
            not output.is_dir() or (any(output.iterdir()) and not (output / WORK).is_dir())
        ):
            raise ConfigError([f"output={output} exists and is no dataset folder: give another name"])
        return None
    manifest = read_manifest(output)
    state = "a finished dataset"
    refuse_other_config(manifest.config, _identity(config), output, state, ["rejects.max_fraction"])
    refuse_other_input(_known_sources(manifest, plan.sources), plan.sources, (), output, state)
    try:
        verify_shards(manifest)
        refuse_missing_files(manifest)
    except DlrmError as error:
        raise DataError(f"{error}\nto make it again: delete {output} and run the same command") from error
    refuse_too_many_rejects(manifest, config.rejects.max_fraction)
    shutil.rmtree(output / WORK, ignore_errors=True)  # a run that ended between its last two acts
    logger.info(f"{output} is finished already; nothing to do")
    report(manifest, None)
    return manifest


def _known_sources(manifest: Manifest, now: Sequence[Source]) -> list[Source]:
    """The input of a finished dataset; what its manifest does not tell is taken from the files as they are now."""
    files = {source.path: source for source in now}
    known = []
    for index, source in enumerate(manifest.sources):
        file = files.get(source.path)
        modified_ns = source.modified_ns or (file.modified_ns if file else 0)
        is_gzip = file.is_gzip if file else False
        known.append(Source(index, source.path, source.split, source.bytes, modified_ns, is_gzip))
    return known


def _identity(config: PreprocessConfig) -> dict[str, Any]:
    """As it looks once it was written as JSON."""
    value: dict[str, Any] = json.loads(json.dumps(identity(config)))
    return value


def _open_work(config: PreprocessConfig, plan: Plan) -> bool:
    """Begins OUTPUT/.work, or makes sure that the one there is of this very run; tells whether it was there."""
    encoding = None
    if config.encoding.kind == "from_dataset":
        encoding = read_manifest(Path(config.encoding.path or "")).fingerprint()
    now = RunRecord(identity(config), plan.sources, encoding)
    before = read_run(plan.output)
    if before is None:
        write_run(plan.output, now)
        return False
    state = "an unfinished dataset"
    refuse_other_config(before.config, _identity(config), plan.output, state, open_keys(plan.output, before))
    refuse_other_input(before.sources, plan.sources, before.damaged, plan.output, state)
    if before.encoding != encoding:
        hint = f"delete {plan.output} to start again"
        raise ConfigError([f"the dataset at encoding.path={config.encoding.path} has changed: {hint}"])
    logger.info(f"{plan.output} is unfinished: going on where it stopped")
    remove_temporary_files(plan.output)
    if before.config["encoding"] != _identity(config)["encoding"]:
        redo_vocabularies(plan.output)
    write_run(plan.output, replace(before, config=identity(config), sources=plan.sources, damaged=()))
    return True
