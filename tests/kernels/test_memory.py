"""polars keeps the memory that it frees, and the environment stays what it was."""

import os
import subprocess
import sys

import pytest

_FAULTS = """
import os, resource, time
from concurrent.futures import ThreadPoolExecutor
from dlrm_app.kernels.memory import load_polars
before = dict(os.environ)
with ThreadPoolExecutor(8) as threads:
    polars = [*threads.map(lambda _: load_polars(), range(8))][0]
assert dict(os.environ) == before
def faults():
    first = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    held = [polars.select(polars.int_range(1 << 17)) for _ in range(50)]  # 1 MiB each
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - first
faults()
time.sleep(2)
print(faults())
"""


@pytest.mark.parametrize(("options", "keeps"), [(None, True), ("dirty_decay_ms:0,muzzy_decay_ms:0", False)])
def test_polars_keeps_memory_unless_it_is_told_otherwise(options: str | None, keeps: bool) -> None:
    given = {} if options is None else {"_RJEM_MALLOC_CONF": options}
    run = [sys.executable, "-c", _FAULTS]
    done = subprocess.run(run, env={**os.environ, **given}, capture_output=True, text=True, check=True)
    assert (int(done.stdout) < 6_400) == keeps  # of 12,800 pages
