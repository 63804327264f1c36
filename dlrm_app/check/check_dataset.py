"""dlrm-check's job."""

import logging
import shutil
import time
from pathlib import Path

from dlrm_app.check.files import check_files
from dlrm_app.check.overlap import FOLDER_PREFIX
from dlrm_app.check.scan import Findings, scan
from dlrm_app.check.summary import summary, verdict
from dlrm_app.dataset.manifest import read_manifest
from dlrm_app.dataset.shard_files import SUGGESTION
from dlrm_app.errors import DataError, DlrmError
from dlrm_app.preprocess.finish import next_command
from dlrm_app.preprocess.units.executor import num_cores
from dlrm_app.text import bullets

logger = logging.getLogger(__name__)


def check_dataset(folder: Path, *, num_threads: int | None = None, memory_gib: float = 2) -> Findings:
    """Reads all of the dataset in ``folder`` and logs what is in it."""
    manifest = read_manifest(folder)
    start = time.perf_counter()
    threads = num_threads or num_cores()
    for leftover in folder.glob(f"{FOLDER_PREFIX}*"):  # of a check that was killed
        shutil.rmtree(leftover, ignore_errors=True)
    problems, whole = check_files(manifest, threads)
    try:
        findings = scan(manifest, whole, threads, int(memory_gib * 2**30))
    except OSError as error:
        raise DlrmError(
            f"{folder} cannot be checked ({error}): a dataset of more rows than memory_gib={memory_gib} can hold "
            "at 16 bytes each needs room for files of 8 bytes a row in that folder"
        ) from error
    findings.problems[:0] = problems
    logger.info(f"{summary(findings)}\n")
    rows = sum(split.rows for split in manifest.splits.values())
    logger.info(f"{rows:,} rows read in {time.perf_counter() - start:.1f} s")
    return findings


def conclude(findings: Findings) -> None:
    """Logs that the dataset is whole and what comes next. Raises DataError naming every problem."""
    folder = findings.manifest.folder
    if findings.problems:
        raise DataError(
            f"{folder}: {verdict(findings.problems)}; {SUGGESTION}:\n{bullets(findings.problems)}"
        )
    logger.info(f"{folder}: {verdict([])}\nnext: {next_command(findings.manifest)}")
