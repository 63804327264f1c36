"""Which files are the input: each once, none that can be read only once."""

import glob
import gzip
import os
from pathlib import Path

import pyarrow as pa
import pytest

from dlrm_app.config.datasets import InputConfig
from dlrm_app.errors import ConfigError
from dlrm_app.logs.sources.find_sources import find_files, find_sources
from dlrm_app.logs.sources.folders import NoFilesError
from tests.refusals import is_like, refused


@pytest.fixture(autouse=True)
def _days(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for day in range(3):
        (tmp_path / f"day_{day}").write_text(f"{day}\n")
    (tmp_path / "link").symlink_to("day_2")
    os.link(tmp_path / "day_2", tmp_path / "hard")


@pytest.mark.parametrize(
    ("given", "first", "second"),
    [
        (InputConfig(train=["day_2", "day_2"]), "input.train=day_2", "input.train=day_2"),
        (InputConfig(train=["day_2", "link"]), "input.train=day_2", "input.train=link"),
        (InputConfig(train=["day_2", "hard"]), "input.train=day_2", "input.train=hard"),
        (InputConfig(train="day_*", val="day_2"), "input.train=day_2", "input.val=day_2"),
        (InputConfig(train="day_0", val="day_1", test="./day_[1]"), "input.val=day_1", "input.test=./day_1"),
    ],
)
def test_a_file_that_is_named_twice_is_refused(given: InputConfig, first: str, second: str) -> None:
    with pytest.raises(ConfigError) as caught:
        find_sources(given)
    (problem,) = caught.value.problems
    assert is_like(problem, first, f"and {second} are the same file...")


def test_a_file_named_once_is_input_and_equal_files_are_not_one() -> None:
    Path("copy").write_text("2\n")
    sources = find_sources(InputConfig(train="day_*", val="copy"))
    named = [(f"day_{day}", "train") for day in range(3)]
    assert [(source.path, source.split) for source in sources] == [*named, ("copy", "val")]


def test_a_folder_means_all_data_below_it_in_natural_order() -> None:
    good = ["dt=2/part-10", "dt=2/part-9", "dt=10/part-0", "dt=10/more/part-1"]
    marked = ["_SUCCESS", "dt=2/_SUCCESS", "dt=2/.part-9.crc", ".hidden/part-0", "_temporary/part-3"]
    for name in [*good, *marked, "dt=2/empty"]:
        path = Path("lake", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("" if "empty" in name else "0\n")
    expected = ["lake/dt=2/part-9", "lake/dt=2/part-10", "lake/dt=10/more/part-1", "lake/dt=10/part-0"]
    for given in ("lake", "lake/**", "lake/dt=*"):
        assert [source.path for source in find_files("input", given)] == expected
    assert [source.path for source in find_files("input", "lake/dt=*/part-*")] == [*expected[:2], expected[3]]
    Path("lake/_temporary/part-3").write_text("")
    with refused(ConfigError, "input=lake/_temporary", "has no file to read (looked in ...)"):
        find_files("input", "lake/_temporary")
    hidden = [source.path for source in find_files("input", "lake/.hidden/*")]  # named by the user
    assert hidden == ["lake/.hidden/part-0"]


def test_linked_folders_are_part_of_a_folder() -> None:
    for name in ("disk_1/dt=1/part-0", "disk_2/dt=2/part-0", "disk_2/dt=2/more/part-1"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("0\n")
    Path("log").mkdir()
    Path("log/dt=1").symlink_to("../disk_1/dt=1")
    Path("log/dt=2").symlink_to(Path("disk_2/dt=2").absolute())
    expected = ["log/dt=1/part-0", "log/dt=2/more/part-1", "log/dt=2/part-0"]
    for given in ("log", "./log", "log/", "log/*", "log/**", f"{Path.cwd()}/log"):
        found = [os.path.relpath(source.path) for source in find_files("input", given)]
        assert found == expected, given
    assert [source.partition for source in find_files("input", "log")] == [{"dt": "1"}, *[{"dt": "2"}] * 2]
    Path("log/dt=3").symlink_to("dt=2")  # the same files under two names
    with refused(
        ConfigError,
        "input=log/dt=2/more/part-1",
        "and input=log/dt=3/more/part-1 are the same file (a glob such as 'day_[0-9]' names...",
    ):
        find_files("input", "log")


@pytest.mark.parametrize("target", ["..", "../..", "/", ".", "../inner"])
@pytest.mark.parametrize("given", ["log", "log/**", "log/*", "log/**/part-*"])
def test_a_loop_of_links_is_refused_by_name(target: str, given: str) -> None:
    Path("log/inner").mkdir(parents=True)
    Path("log/inner/part-0").write_text("0\n")
    Path("log/inner/loop").symlink_to(target)
    with refused(ConfigError, f"input={given}: log/inner/loop", "is a link to /..., a folder above it"):
        find_files("input", given)


def test_links_in_hidden_folders_are_not_followed() -> None:
    Path("log/.snapshot").mkdir(parents=True)
    Path("log/part-0").write_text("0\n")
    Path("log/.snapshot/loop").symlink_to("../..")
    Path("log/lost+found").symlink_to("..")
    for given in ("log", "log/**"):
        assert [source.path for source in find_files("input", given)] == ["log/part-0"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every folder")
def test_a_folder_that_may_not_be_read_is_refused() -> None:
    Path("log/shut").mkdir(parents=True)
    Path("log/part-0").write_text("0\n")
    Path("log/shut").chmod(0)
    with refused(ConfigError, "input=log: log/shut", "cannot be read (Permission denied)"):
        find_files("input", "log")


@pytest.mark.parametrize(
    "pattern",
    ["**", "**/", "**/*", "a/**", "**/*.parquet", "**/b/**/part-?", "*/**/[ab]*", "a/**/c", "**/**", "x/**"],
)
def test_a_glob_of_all_folders_is_what_glob_finds(pattern: str) -> None:
    names = ["a/part-1", "a/b/part-2", "a/b/c/part-3", "b/x.parquet/part-4", "b/y.parquet", "part-5", "c/a"]
    for name in names:
        (path := Path("log", name)).parent.mkdir(parents=True, exist_ok=True)
        path.write_text("0\n")
    found = [Path(match) for match in glob.glob(f"log/{pattern}", recursive=True)]  # noqa: PTH207
    below = {str(file) for path in found for file in (path, *path.rglob("*")) if file.is_file()}
    try:
        paths = [source.path for source in find_files("input", f"log/{pattern}")]
    except NoFilesError:
        paths = []
    assert set(paths) == below


def test_a_pipe_is_refused_at_once() -> None:
    os.mkfifo("pipe")
    with refused(ConfigError, "input.train=pipe", "is a pipe or a device, and input is read more than once"):
        find_sources(InputConfig(train="pipe"))
    with refused(
        ConfigError, "input.train=/dev/null", "is a pipe or a device, and input is read more than once"
    ):
        find_sources(InputConfig(train="/dev/null"))


@pytest.mark.parametrize(
    "pair", [("plain", "packed.gz"), ("packed.gz", "again.gz"), ("plain", "copy"), ("packed.zst", "again.gz")]
)
def test_a_copy_of_a_file_is_refused_plain_or_compressed(pair: tuple[str, str]) -> None:
    text = b"".join(b"%d\t%d\n" % (row, row * row) for row in range(4000))
    for name in ("plain", "copy"):
        Path(name).write_bytes(text)
    Path("packed.gz").write_bytes(gzip.compress(text, 1))
    Path("again.gz").write_bytes(gzip.compress(text, 9))
    with pa.CompressedOutputStream("packed.zst", "zstd") as file:  # which does not note its size
        file.write(text)
    with refused(ConfigError, f"input.train={pair[0]}", f"and input.val={pair[1]} hold the same text"):
        find_sources(InputConfig(train=pair[0], val=pair[1]))


def test_files_that_differ_late_are_two() -> None:
    text = b"0\t1\n" * 8000
    Path("one").write_bytes(text)
    Path("two").write_bytes(text + b"0\t1\n")
    Path("three.gz").write_bytes(gzip.compress(text + b"0\t1\n0\t1\n"))
    assert len(find_sources(InputConfig(train=["one", "two", "three.gz"]))) == 3


def test_damaged_gzip_data_is_not_refused_before_it_is_read() -> None:
    Path("bad.gz").write_bytes(b"\x1f\x8b" + b"no gzip" * 9000)
    assert len(find_sources(InputConfig(train=["bad.gz", "day_0"]))) == 2


LEFT_BY_OTHERS = [
    *(
        "a.csv.tmp",
        "a.csv.crdownload",
        "a.csv.part",
        "a.csv._COPYING_",
        "part-0.inprogress.1a2b",
        "a.csv.filepart",
    ),
    *(
        "_SUCCESS",
        "_temporary/0/part-1",
        ".part-0.csv.crc",
        "a.csv.crc",
        "a.csv.md5",
        "a.csv.sha256",
        "SHA256SUMS",
    ),
    *("md5sums.txt", "checksums.txt", "a.csv~", "a.csv.bak", ".~lock.a.csv#", "Thumbs.db", "dt=1_$folder$"),
    *(".hidden/b.csv", "__MACOSX/b.csv", "_spark_metadata/0", "a.csv.lock", "sub/a.csv.part", "clicks.yaml"),
]


@pytest.mark.parametrize("given", ["log", "log/**", "log/*"])
def test_files_that_other_programs_leave_are_left_out_and_said_once(
    given: str, caplog: pytest.LogCaptureFixture
) -> None:
    data = ["a.csv", "part.csv", "tmp", "sub/backup.csv", "crc", "day.1", "dt=x.part/a", "locks/b"]
    for name in (*LEFT_BY_OTHERS, *data):
        Path("log", name).parent.mkdir(parents=True, exist_ok=True)
        Path("log", name).write_text(f"{name}\n")
    with caplog.at_level("INFO"):
        found = [source.path.removeprefix("log/") for source in find_files("input", given)]
    assert sorted(found) == sorted(data)
    (line,) = [each.getMessage() for each in caplog.records]
    assert line.startswith(f"input={given}: left out by their names: ")
    assert " and 1" in line


def test_a_half_written_file_alone_is_named_and_read_if_it_is_asked_for() -> None:
    Path("log").mkdir()
    Path("log/a.csv.crdownload").write_text("1\n")
    with refused(
        ConfigError, "input=log", "has no file to read, but for log/a.csv.crdownload (looked in ...)"
    ):
        find_files("input", "log")
    assert len(find_files("input", "log/a.csv.crdownload")) == 1
