"""The installed command: what a user sees when all is well."""

import re
import subprocess
import sys
from pathlib import Path

from tests.preprocess.clicks import make_clicks

COMMAND = Path(sys.executable).with_name("dlrm-preprocess")


def preprocess(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the installed command in ``folder``."""
    return subprocess.run([COMMAND, *arguments], cwd=folder, capture_output=True, text=True, check=False)


def test_it_says_what_it_made_and_what_to_type_next(tmp_path: Path) -> None:
    (tmp_path / "log.tsv").write_bytes(make_clicks(300))
    done = preprocess(tmp_path, "input.train=log.tsv", "split.val=0.1", "split.test=0.1", "output=k")
    assert done.returncode == 0, done.stderr
    assert re.search(r"train +240", done.stderr)
    assert re.search(r"300 rows in [0-9.]+ s: [0-9,]+ rows/s", done.stderr)
    assert re.search(r"vocabulary, min_count \d+ +cat_0, cat_1", done.stderr)
    assert "next: dlrm-train data.path=k tables=dataset" in done.stderr
    assert sorted(path.name for path in (tmp_path / "k").iterdir()) == [
        "manifest.json",
        "rejects.jsonl",
        "target",
        "test",
        "train",
        "val",
        "vocab",
    ]
    again = preprocess(tmp_path, "input.train=log.tsv", "split.val=0.1", "split.test=0.1", "output=k")
    assert again.returncode == 0
    assert "k is finished already; nothing to do" in again.stderr
