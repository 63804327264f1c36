"""What a disk can do to a program is told in one line, with the file or folder."""

from pathlib import Path

import numpy as np
import pytest

from dlrm_app.errors import DlrmError
from dlrm_app.files import ensure_room, explained_disk_errors, written_whole


def test_a_full_disk_of_which_numpy_gives_no_number_is_called_so() -> None:
    values = np.arange(100_000)
    with (
        pytest.raises(DlrmError, match="no room left on the disk of output=out: free some, then go on"),
        explained_disk_errors(Path("out"), "then go on"),
        Path("/dev/full").open("wb") as file,
    ):
        values.tofile(file)


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(OSError, match="No space left on device") as caught,
        written_whole(tmp_path / "page.html"),
        Path("/dev/full").open("w") as file,
    ):
        file.write("x" * 100_000)
    assert caught.value.filename == str(tmp_path / "page.html")


def test_a_writer_that_would_end_the_process_asks_for_room_first(tmp_path: Path) -> None:
    ensure_room(tmp_path, 1)
    with (
        pytest.raises(DlrmError, match="no room left on the disk of output=out"),
        explained_disk_errors(Path("out"), "then export again"),
    ):
        ensure_room(tmp_path, 2**80)
