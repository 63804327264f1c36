"""polars keeps the memory that it frees, and the environment stays what it was."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

_LOAD = """
import os
from concurrent.futures import ThreadPoolExecutor
from dlrm_app.kernels.memory import load_polars
before = dict(os.environ)
with ThreadPoolExecutor(8) as threads:
    polars = [*threads.map(lambda _: load_polars(), range(8))][0]
assert dict(os.environ) == before
"""
_FAULTS = """
import resource
def faults():
    first = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    held = [polars.select(polars.int_range(1 << 17)) for _ in range(50)]  # 1 MiB each
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - first
faults()
print(faults())
"""
OURS, USERS = "dirty_decay_ms:2000,muzzy_decay_ms:0", "dirty_decay_ms:0,muzzy_decay_ms:0"


def printed(code: str, **variables: str) -> str:
    """What a process prints that has the options of ``variables`` alone: polars sets its own where it is loaded."""
    inherited = {name: value for name, value in os.environ.items() if name != "_RJEM_MALLOC_CONF"}
    environment = {**inherited, **variables}
    run = [sys.executable, "-c", code]
    return subprocess.run(run, env=environment, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize(("options", "keeps"), [(None, True), (USERS, False)])
def test_polars_keeps_memory_unless_the_environment_says_otherwise(options: str | None, keeps: bool) -> None:
    given = {} if options is None else {"_RJEM_MALLOC_CONF": options}
    assert (int(printed(_LOAD + _FAULTS, **given)) < 6_400) == keeps  # of 12,800 pages


@pytest.mark.parametrize(("options", "expected"), [(None, OURS), (USERS, f"{OURS},{USERS}")])
def test_the_users_options_come_behind(tmp_path: Path, options: str | None, expected: str) -> None:
    """The last one of a name is in force. They are read once, while polars is loaded."""
    (tmp_path / "polars.py").write_text('import os\nread = os.environ["_RJEM_MALLOC_CONF"]\n')
    given = {} if options is None else {"_RJEM_MALLOC_CONF": options}
    assert printed(f"{_LOAD}print(polars.read)", PYTHONPATH=str(tmp_path), **given) == expected
