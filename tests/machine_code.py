"""Compiles the machine code that most tests need, which numba keeps on disk.

python -m tests.machine_code    # before several processes, each of which would compile it
"""

from pathlib import Path
from tempfile import TemporaryDirectory

from tests.preprocessing.clicks import make_clicks
from tests.preprocessing.running import AUTO, make
from tests.small_run import train_here


def compile_most() -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "log.tsv").write_bytes(make_clicks(2000))
        make(folder / "data", f"input.train={folder}/log.tsv", "split.val=0.1", "threads=1", *AUTO)
        train_here(folder / "run", f"data.path={folder}/data")


if __name__ == "__main__":
    compile_most()
