"""dlrm-preprocess: checks the configuration, the input and the output, then runs the stages."""

import os
import shutil
import time
from concurrent.futures import Executor as Pool
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from dlrm_app.config.datasets import PreprocessConfig
from dlrm_app.dataset.manifest import read_manifest
from dlrm_app.distributed.ranks import Ranks, count_cores
from dlrm_app.errors import Problem, refuse_if
from dlrm_app.files import explained_disk_errors
from dlrm_app.journal import REPEAT
from dlrm_app.logs.first_rows import warn_of_odd_columns
from dlrm_app.preprocessing.request import kept_settings, read_request, with_file_specs
from dlrm_app.preprocessing.resume import begin_work, finished_dataset
from dlrm_app.preprocessing.stages import Stages
from dlrm_app.preprocessing.summary import Dataset
from dlrm_app.preprocessing.work.executor import Executor, LocalExecutor
from dlrm_app.preprocessing.work.futures_executor import FuturesExecutor
from dlrm_app.preprocessing.work.rank_executor import Sharing
from dlrm_app.preprocessing.work.shared_folder import shared_folder
from dlrm_app.preprocessing.work.work_folder import WORK, locked, remove_temporary_files

ALONE = Ranks(0, 0, 1, 1, "cpu")


def preprocess(config: PreprocessConfig, ranks: Ranks = ALONE, pool: Pool | None = None) -> Dataset:
    """Makes the dataset that ``config`` describes, or continues an unfinished one. All ``ranks`` must call it.

    ``pool``: runs the units of work, in place of this process's threads.
    Raises ConfigError for settings that cannot work, DataError for damaged input, DlrmError for a full disk.
    """
    refuse_if(_sharing_problems(config, ranks, pool))
    request = read_request(config)
    finished = finished_dataset(request)
    if finished is not None:
        return Dataset(finished)
    output = request.inputs.output
    seen, threads = shared_folder(output), _num_threads(config, ranks)
    sharing = Sharing(output, seen, ranks, config.timeout_minutes, threads, kept_settings(config))
    if not ranks.is_first:
        with explained_disk_errors(output, REPEAT):
            sharing.follow()
            return Dataset(read_manifest(seen.finished()))
    with sharing.leading() if ranks.world_size > 1 else nullcontext() as shared:
        request = with_file_specs(request)
        inputs = request.inputs
        warn_of_odd_columns([(each, inputs.file_specs[each.index]) for each in inputs.sources])
        start = time.perf_counter()
        executor = nullcontext(shared) if shared else _open_executor(config, pool)
        with executor as opened, explained_disk_errors(output, REPEAT), locked(output, ranks.world_size):
            plan, is_resumed = begin_work(request)
            manifest = Stages.of(plan, opened).run()
            remove_temporary_files(output)
            if ranks.world_size == 1:
                shutil.rmtree(output / WORK)
    return Dataset(manifest, None if is_resumed else time.perf_counter() - start)


def _sharing_problems(config: PreprocessConfig, ranks: Ranks, pool: Pool | None) -> list[Problem]:
    """Problems of two ways to divide the work at once."""
    name = config.executor if pool is None else type(pool).__name__
    if name == "local":
        return []
    problems = []
    if ranks.world_size > 1:
        rule = f"divides the work, and so do the {ranks.world_size} ranks that were started"
        problems.append(Problem(f"executor={name}", rule, "start one process, or leave it out"))
    if pool is not None and config.threads is not None:
        cure = "the executor has its own number of workers: leave it out"
        problems.append(Problem("threads", "is for executor=local", cure, config.threads))
    return problems


def _num_threads(config: PreprocessConfig, ranks: Ranks) -> int:
    """The threads of this rank: its share of the machine's cores, unless a number is given."""
    cores = count_cores(frozenset(os.sched_getaffinity(0)), os.environ, Path("/"))
    return config.threads or max(1, cores // ranks.local_world_size)


def _open_executor(config: PreprocessConfig, pool: Pool | None) -> AbstractContextManager[Executor]:
    if pool is not None:
        return nullcontext(FuturesExecutor(pool, Path(config.output)))
    if config.executor == "local":
        return nullcontext(LocalExecutor(config.threads))
    from dlrm_app.preprocessing.work.dask_executor import open_cluster  # Dask is an extra

    return open_cluster(config.dask.address or "", Path(config.output))
