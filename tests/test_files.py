"""What a disk can do to a program is told in one line, with the file or folder."""

from pathlib import Path

import numpy as np
import pytest

from dlrm_app.errors import DlrmError
from dlrm_app.files import ensure_room, explained_disk_errors, output_problems, written_whole, yaml_text
from tests.refusals import refused


def test_a_full_disk_of_which_numpy_gives_no_number_is_called_so() -> None:
    values = np.arange(100_000)
    with (
        refused(DlrmError, "output=out", "has no room left on its disk", "free some, then go on"),
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
        refused(DlrmError, "output=out", "has no room left on its disk"),
        explained_disk_errors(Path("out"), "then export again"),
    ):
        ensure_room(tmp_path, 2**80)


def test_an_output_is_refused_where_the_job_could_not_write_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nowhere")
    assert output_problems("output", tmp_path / "new" / "deep" / "page.html") == []
    assert output_problems("output", tmp_path / "file") == []
    assert output_problems("output", tmp_path, is_folder=True) == []
    for path, kind, said in (
        (tmp_path, {}, "is a folder: give the name of a file"),
        (tmp_path / "file", {"is_folder": True}, "is a file: give the name of a folder"),
        (tmp_path / "file", {"is_new": True}, "exists: give another name, or delete it"),
        (tmp_path / "file" / "page.html", {}, "file, which is not a folder: give another name"),
        (tmp_path / "link", {}, "is a link to nowhere, which is not there): give another name"),
        (Path("s3://clicks/made"), {"is_folder": True}, "is a URL, and output must be on a file system"),
        (tmp_path / "link" / "deep", {"is_folder": True}, "is a link to nowhere, which is not there"),
    ):
        (problem,) = output_problems("output", path, **kind)
        assert said in str(problem)


@pytest.mark.parametrize("text", ["a: &a [1, 2]\nb: {c: *a, d: *a}\n", "a: '*'\n" + "b: [1, 2]\n" * 40_000])
def test_yaml_with_a_few_aliases_is_read_as_it_is(tmp_path: Path, text: str) -> None:
    (tmp_path / "file.yaml").write_text(text)
    assert yaml_text(tmp_path / "file.yaml") == text
