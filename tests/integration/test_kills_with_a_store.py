"""Commands killed at random moments, each time on a machine with an empty disk, make what they make at once."""

import random
import re
import shutil
import subprocess
import time
from collections import Counter
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

import dlrm_app as dlrm
from tests.commands import command, run, succeed
from tests.integration.test_kept_folders import TRAIN, objects
from tests.small_run import SMALL
from tests.tools.daily.days_here import KEPT, NAMES, days_words, write_log

pytestmark = pytest.mark.long

COMMANDS = {
    "export": ["checkpoint={folder}/run", "format=[parquet,torchscript]", "judgement=ignore"],
    "predict": ["model={folder}/run", "data.path={dataset}", "split=train", "batch_size=64"],
    "days": [
        *(word for word in days_words(Path("{folder}/log"), Path("-"), NAMES[1]) if word != "output=-"),
        "days.export=true",
        "export.format=torchscript",
    ],
    "tune": [
        *SMALL,
        "data.path={dataset}",
        "trainer.threads=1",
        "trainer.max_steps=20",
        "tune.trials=3",
        "tune.prune=false",
    ],
}
OUTPUT = {"predict": "s3://clicks/made/scores.parquet"}
SAME = (*KEPT, "*.pq")
"""Files that have the same bytes; others have times in them."""


def same_of(files: dict[str, bytes]) -> dict[str, bytes]:
    """All names, and the bytes that must be the same."""
    return {
        path: data if any(fnmatchcase(path.rpartition("/")[2], each) for each in SAME) else b""
        for path, data in files.items()
    }


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_killed_on_one_empty_disk_after_another_makes_the_same(
    s3: Any, tmp_path: Path, stores: Path, dataset: Path, name: str
) -> None:
    write_log(tmp_path / "log", rows=1000, days=2)
    dlrm.train(*TRAIN, "trainer.epochs=1", f"data.path={dataset}", output=str(tmp_path / "run"))
    given = [
        word.replace("{folder}", str(tmp_path)).replace("{dataset}", str(dataset)) for word in COMMANDS[name]
    ]
    arguments = command(name, *given, f"output={OUTPUT.get(name, 's3://clicks/made')}")
    began = time.monotonic()
    succeed(arguments, tmp_path)
    seconds, whole = time.monotonic() - began, objects(s3, "made")
    for path in whole:
        s3.delete_object(Bucket="clicks", Key=f"made/{path}")
    shutil.rmtree(stores)
    draw, seen = random.Random(name), set[str]()
    for _ in range(4):
        process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(draw.uniform(0.3, 1) * seconds)
        process.kill()
        is_done = process.wait() == 0
        seen |= objects(s3, "made").keys()
        shutil.rmtree(stores, ignore_errors=True)
        if is_done:
            break
    last = run(arguments, tmp_path)
    # an export may be whole before its command ends; then it is there, as on a disk
    assert last.returncode == 0 or (name == "export" and "exists" in last.stderr), last.stderr[-3000:]
    made = objects(s3, "made")
    assert seen
    if name == "tune":  # draws values again; a trial that was cut off is made again under another number
        kinds, wanted = (
            Counter(re.sub(r"trials/\d+", "trials/N", path) for path in files) for files in (made, whole)
        )
        assert not wanted - kinds
    else:
        assert same_of(made) == same_of(whole)
