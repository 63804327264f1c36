"""kill -9 and a full disk: nothing is broken, and the same command goes on to the same bytes."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.preprocessing.clicks import make_clicks
from tests.preprocessing.interruptions import assert_kills_change_nothing
from tests.preprocessing.running import content

COMMAND = Path(sys.executable).with_name("dlrm-preprocess")


def command(folder: Path, output: str, *options: str) -> list[str]:
    given = [f"input.train={folder}/log.tsv", "split.val=0.1", "split.test=0.1", "layout.unit_mib=1"]
    return [str(COMMAND), *given, *options, f"output={output}"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "kills_wanted"),
    [
        (["encoding=vocab", "encoding.min_count=2", "shuffle=full", "layout.shuffled_shard_rows=5000"], 30),
        (["encoding=hash", "dense.transform=standardize", "shuffle=block"], 10),
        ([], 15),
        (["encoding=vocab", "encoding.min_count=2", "encoding.grow_from={parent}"], 30),
    ],
    ids=["vocab-full", "hash-block", "auto", "grown"],
)
def test_a_run_killed_at_random_moments_ends_in_the_same_bytes(
    tmp_path: Path, options: list[str], kills_wanted: int
) -> None:
    (tmp_path / "log.tsv").write_bytes(make_clicks(60_000, bad_every=5000))
    if any("{parent}" in option for option in options):
        (tmp_path / "earlier.tsv").write_bytes(make_clicks(20_000, seed=1))
        earlier = [f"input.train={tmp_path}/earlier.tsv", "encoding=vocab", f"output={tmp_path}/parent"]
        subprocess.run([str(COMMAND), *earlier], check=True, capture_output=True)
    options = [option.format(parent=tmp_path / "parent") for option in options]
    arguments = [*options, "rejects.max_fraction=0.01"]
    assert_kills_change_nothing(
        [*command(tmp_path, f"{tmp_path}/killed", *arguments)], tmp_path / "killed", kills_wanted
    )


@contextlib.contextmanager
def small_disk(path: Path, megabytes: int) -> Iterator[None]:
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(path)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("mounting a tmpfs is not permitted here")
    try:
        yield
    finally:
        subprocess.run(["umount", str(path)], check=True)


@pytest.mark.long
def test_a_full_disk_is_explained_and_the_run_can_resume(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting a tmpfs is not permitted here")
    (tmp_path / "log.tsv").write_bytes(make_clicks(60_000))
    subprocess.run(command(tmp_path, f"{tmp_path}/whole"), check=True, capture_output=True)
    room = sum(len(data) for data in content(tmp_path / "whole").values())
    with small_disk(tmp_path / "small", room // (1 << 20) + 68):
        ballast = tmp_path / "small/ballast"
        ballast.write_bytes(bytes((room // (1 << 20) + 65) << 20))
        full = subprocess.run(
            command(tmp_path, f"{tmp_path}/small/k"), capture_output=True, text=True, check=False
        )
        assert full.returncode == 1
        assert f"output={tmp_path}/small/k has no room left on its disk: free some" in full.stderr
        assert "Traceback" not in full.stderr
        assert not (tmp_path / "small/k/manifest.json").exists()
        ballast.unlink()
        again = subprocess.run(
            command(tmp_path, f"{tmp_path}/small/k"), capture_output=True, text=True, check=False
        )
        assert again.returncode == 0, again.stderr
        assert "is unfinished: continuing where it stopped" in again.stderr
        assert content(tmp_path / "small/k") == content(tmp_path / "whole")
