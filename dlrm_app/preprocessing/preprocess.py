"""dlrm-preprocess: checks the configuration, the input and the output, then runs the stages."""

import shutil
import time
from contextlib import AbstractContextManager, nullcontext

from dlrm_app.config.datasets import PreprocessConfig
from dlrm_app.files import explained_disk_errors
from dlrm_app.journal import REPEAT
from dlrm_app.preprocessing.passes.first_rows import warn_of_odd_columns
from dlrm_app.preprocessing.request import read_request, with_file_specs
from dlrm_app.preprocessing.resume import begin_work, finished_dataset
from dlrm_app.preprocessing.stages import Stages
from dlrm_app.preprocessing.summary import Dataset
from dlrm_app.preprocessing.work.executor import Executor, LocalExecutor
from dlrm_app.preprocessing.work.work_folder import WORK, locked, remove_temporary_files


def preprocess(config: PreprocessConfig) -> Dataset:
    """Makes the dataset that ``config`` describes, or continues an unfinished one.

    Raises ConfigError for settings that cannot work, DataError for damaged input, DlrmError for a full disk.
    """
    request = read_request(config)
    finished = finished_dataset(request)
    if finished is not None:
        return Dataset(finished)
    request, output = with_file_specs(request), request.inputs.output
    warn_of_odd_columns(request.inputs)
    start = time.perf_counter()
    executor = _open_executor(config.executor, config.threads, config.dask.address or "")
    with executor as opened, explained_disk_errors(output, REPEAT), locked(output):
        plan, is_resumed = begin_work(request)
        manifest = Stages.of(plan, opened).run()
        remove_temporary_files(output)
        shutil.rmtree(output / WORK)
    return Dataset(manifest, None if is_resumed else time.perf_counter() - start)


def _open_executor(kind: str, threads: int | None, address: str) -> AbstractContextManager[Executor]:
    if kind == "local":
        return nullcontext(LocalExecutor(threads))
    from dlrm_app.preprocessing.work.dask_executor import open_cluster  # Dask is an extra

    return open_cluster(address)
