"""Objects of a store give the bytes of files, however connections behave; their credentials go to the driver alone."""

import gzip
import io
import json
import os
import pickle
import random
import socket
import threading
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import hypothesis.strategies as st
import obstore.store
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from obstore.store import LocalStore

from dlrm_app.errors import ConfigError, DataError
from dlrm_app.logs.sources import parquet_decoders, remote_file, store
from dlrm_app.logs.sources.find_sources import find_files
from dlrm_app.logs.sources.parquet_decoders import decode_plain
from dlrm_app.logs.sources.parquet_units import ParquetFeed, units_of
from dlrm_app.logs.sources.remote_file import RemoteFile
from dlrm_app.logs.sources.source import InputFile, check_unchanged
from dlrm_app.logs.sources.store import address_of, object_version
from dlrm_app.logs.sources.text_units import TextFeed
from tests.refusals import is_like, refused


class FlakyServer(ThreadingHTTPServer):
    """A web server with ranges. ``faults``: what the next answers are, the last first: a number is the status to
    answer with, "drop" closes the connection at once, "cut" in the middle of the body, "whole" ignores the range, and
    a function is called with the server before it answers.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.objects: dict[str, bytes] = {}
        self.faults: list[Any] = []
        self.asked: list[tuple[int, int]] = []
        self.headers: list[Any] = []
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def put(self, name: str, data: bytes) -> str:
        self.objects[name] = data
        return f"{self.url}{name}"


class _Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FlakyServer

    def log_message(self, *_: Any) -> None:
        """Stays silent."""

    def do_HEAD(self) -> None:
        self._answer(None)

    def do_GET(self) -> None:
        with self.server.lock:
            self._answer(self.server.faults.pop() if self.server.faults else None)

    def _answer(self, fault: Any) -> None:
        if callable(fault):
            fault(self.server)
        self.server.headers.append((unquote(self.path), self.headers))
        data = self.server.objects.get(unquote(self.path.partition("?")[0]))
        if fault == "drop":
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        if isinstance(fault, int) or data is None:
            self.send_response(fault or 404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        begin, end = 0, len(data)
        if (asked := self.headers.get("Range")) and fault != "whole":
            first, last = asked.removeprefix("bytes=").split("-")
            begin, end = int(first), min(int(last) + 1, len(data))
            self.server.asked.append((begin, end))
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(data)}")
        else:
            self.send_response(200)
        self.send_header("ETag", f'"{hash(data)}"')
        self.send_header("Last-Modified", "Sat, 28 Nov 2026 12:00:00 GMT")
        self.send_header("Content-Length", str(end - begin))
        self.end_headers()
        if self.command == "HEAD":
            return
        if fault == "cut":
            self.wfile.write(data[begin : begin + (end - begin) // 2])
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
        else:
            self.wfile.write(data[begin:end])


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_file, "PIECE_BYTES", 1 << 12)
    monkeypatch.setattr(remote_file, "SMALL_BYTES", 1 << 8)
    monkeypatch.setattr(remote_file, "MOST_BYTES", 1 << 15)
    monkeypatch.setattr(remote_file, "NEAR_BYTES", 1 << 6)
    monkeypatch.setattr(store, "KEPT_EACH", 1 << 8)


@pytest.fixture(scope="module")
def web() -> Iterator[FlakyServer]:
    with FlakyServer() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def flaky(web: FlakyServer) -> Iterator[FlakyServer]:
    for each in (web.objects, web.faults, web.asked, web.headers):
        each.clear()
    yield web
    web.faults.clear()


class TaggedStore:
    """The objects of a folder, of which lists tell the tags; ``lie`` is added to those. ``asked``: the objects that
    it was asked for, one by one.
    """

    def __init__(self, folder: Path) -> None:
        self.local = LocalStore(folder)
        self.lie = ""
        self.asked: list[str] = []

    def head(self, path: str) -> Any:
        self.asked.append(path)
        return self.local.head(path)

    def get(self, path: str, **options: Any) -> Any:
        return self.local.get(path, **options)

    def list_with_delimiter(self, prefix: str | None) -> Any:
        found = self.local.list_with_delimiter(prefix)
        return {**found, "objects": [*map(self._with_lie, found["objects"])]}

    def list(self, prefix: str | None, **options: Any) -> Any:
        found = [*map(self._with_lie, self.local.list(prefix, **options).collect())]
        return type("Found", (), {"collect": lambda self: found})()

    def _with_lie(self, info: Any) -> Any:
        return {**info, "e_tag": f"{info['e_tag']}{self.lie}"}


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TaggedStore:
    """The store of all URLs with the name of the test's folder as a bucket. It begins empty."""
    (tmp_path / "bucket").mkdir()
    tagged = TaggedStore(tmp_path / "bucket")
    monkeypatch.setattr(obstore.store, "from_url", lambda root, **_: tagged)
    return tagged


def lines_of(feed: TextFeed) -> list[tuple[bytes, int, int, bool]]:
    found = []
    for text in feed.items():
        lines = b"".join(block.text[block.start : block.stop].tobytes() for block in text.blocks())
        extent = text.finish()
        found.append((lines, extent.size, extent.crc, extent.is_last))
    return found


TEXT = b"".join(b"%d\t%x\n" % (n, n * 7919) for n in range(30_000))
FORMS = {"text": TEXT, "gzip": gzip.compress(TEXT), "zstd": pa.compress(TEXT, "zstd", asbytes=True)}


@pytest.mark.slow
@pytest.mark.parametrize("form", ["text", "gzip", pytest.param("zstd", marks=pytest.mark.long)])
def test_a_connection_that_breaks_often_gives_the_same_units(
    flaky: FlakyServer, tmp_path: Path, form: str
) -> None:
    path = tmp_path / "log"
    path.write_bytes(FORMS[form])
    (local,) = find_files("input", str(path))
    (source,) = find_files("input", flaky.put("/bucket/log", FORMS[form]))
    assert source.format == local.format == form
    flaky.faults[:] = [
        "cut",
        None,
        "drop",
        503,
    ] * 8
    unit_bytes = 30_000
    assert lines_of(TextFeed(source, unit_bytes)) == lines_of(TextFeed(local, unit_bytes))
    assert flaky.faults == []
    if form == "text":
        units = range(-(-len(TEXT) // unit_bytes))
        feeds = [TextFeed(source, unit_bytes, unit, unit + 1) for unit in units]
        assert [unit for feed in feeds for unit in lines_of(feed)] == lines_of(TextFeed(local, unit_bytes))


def test_parquet_is_read_by_the_columns_that_are_asked_for(flaky: FlakyServer, tmp_path: Path) -> None:
    draw = random.Random(0)
    table = pa.table({name: [draw.random() for _ in range(20_000)] for name in "abcdef"})
    pq.write_table(table, tmp_path / "log.parquet", row_group_size=9_000)
    data = (tmp_path / "log.parquet").read_bytes()
    (source,) = find_files("input", flaky.put("/bucket/dt=5/log.parquet", data))
    columns = {"first": "b", "day": "dt", "second": "e"}
    units = units_of(source, 3, 50_000)
    flaky.faults[:] = ["cut", None] * 8
    flaky.asked.clear()
    got: list[pa.Table] = []
    for groups in dict.fromkeys(unit.groups for unit in units):
        wanted = tuple(number for number, unit in enumerate(units) if unit.groups == groups)
        feed = ParquetFeed(
            source, columns, 50_000, wanted
        ).prefetched()  # as an executor does ahead of reading
        got += [unit.table for unit in feed.items()]
    whole = pa.concat_tables(got)
    assert whole["first"].to_pylist() == table["b"].to_pylist()
    assert whole["second"].to_pylist() == table["e"].to_pylist()
    assert set(whole["day"].to_pylist()) == {"5"}
    assert flaky.faults == []
    read = {byte for start, stop in flaky.asked for byte in range(start, stop)}
    assert len(read) < len(data) / 2


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.integers(0, 60_000),
    st.lists(st.integers(0, 60_000), max_size=16),
    st.lists(st.tuples(st.integers(0, 60_000), st.integers(0, 9_000)), max_size=12),
)
def test_any_reads_give_the_bytes_of_a_file(
    bucket: TaggedStore, size: int, cuts: list[int], reads: list[tuple[int, int]]
) -> None:
    data = random.Random(size).randbytes(size)
    bucket.local.put("any", data)
    address = address_of(f"s3://any-{id(bucket)}/any")
    ends = sorted({min(cut, size) for cut in cuts})
    apart = list(zip(ends[::2], ends[1::2], strict=False))  # as the parts of a file are
    plain = io.BytesIO(data)
    with io.BufferedReader(RemoteFile(address, object_version(address), apart), 100) as file:
        for at, count in reads:
            file.seek(at)
            plain.seek(at)
            assert file.read(count) == plain.read(count)
            assert file.tell() == plain.tell()


def test_no_more_than_the_next_pieces_is_held(flaky: FlakyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    data = random.Random(0).randbytes(1 << 18)
    address = address_of(flaky.put("/bucket/large", data))
    with RemoteFile(address, object_version(address), [(0, len(data))]) as file:
        read = b""
        while part := file.read(5_000):
            read += part
            held = max(stop for _, stop in flaky.asked) - len(read)
            assert held <= 5 * remote_file.PIECE_BYTES
    assert read == data
    assert len(flaky.asked) == len(data) // remote_file.PIECE_BYTES


def test_reading_ends_with_the_reason_after_some_patience(
    flaky: FlakyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "PATIENCE_SECONDS", 0.5)
    url = flaky.put("/bucket/log", TEXT).replace("http://", "http://me:secret@")
    address = address_of(f"{url}?token=secret")
    version = object_version(address)
    flaky.faults[:] = ["drop"] * 500
    with refused(
        DataError, str(address), "cannot be read (...)", "run the same command again later"
    ) as caught:
        store.fetch(address, 0, 10, version)
    assert "secret" not in str(caught.value)
    assert len(flaky.faults) < 498


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (403, "must not be read: there is no permission"),
        (401, "must not be read: there is no permission"),
        (404, "does not exist"),
        ("whole", "is on a server that does not give parts of files"),
    ],
)
def test_permanent_errors_are_refused_at_once(flaky: FlakyServer, fault: Any, said: str) -> None:
    url = flaky.put("/bucket/log", TEXT)
    flaky.faults[:] = [fault, fault]  # the beginning is asked for twice
    with pytest.raises(ConfigError) as caught:
        find_files("input", url)
    (problem,) = caught.value.problems
    assert is_like(problem, f"input={url}", said)


def test_an_object_that_shrinks_while_it_is_read_is_refused(flaky: FlakyServer) -> None:
    url = flaky.put("/bucket/log", TEXT)
    (source,) = find_files("input", url)
    flaky.faults[:] = [lambda server: server.put("/bucket/log", TEXT[:5_000]), None]
    with refused(DataError, url, "changed while it was being read (406,626 bytes before, 5,000 now)"):
        lines_of(TextFeed(source, 1 << 20))


def test_an_object_replaced_by_one_of_the_same_size_is_another(flaky: FlakyServer) -> None:
    url = flaky.put("/bucket/log", TEXT)
    (source,) = find_files("input", url)
    check_unchanged([source])
    flaky.put("/bucket/log", TEXT[::-1])
    rule = "changed while it was being read (406,626 bytes before, 406,626 now)"
    with refused(DataError, url, rule):
        check_unchanged([source])
    with refused(DataError, url, rule):
        lines_of(TextFeed(source, 1 << 20))


def test_credentials_reach_the_server_and_nothing_else(flaky: FlakyServer) -> None:
    shown = flaky.put("/a bucket/log%41", TEXT)
    url = shown.replace("http://", "http://me:SE%43RET@").replace(" ", "%20").replace("%41", "%2541")
    (source,) = find_files("input", f"{url}?sig=SECRET")
    assert "SE" not in f"{source} {source!r} {json.dumps(asdict(source))}"
    assert isinstance(source.path, store.Address)
    assert source.path.url == f"{url}?sig=SECRET"
    assert {each["Authorization"] for path, each in flaky.headers if path.startswith("/a bucket/")} == {
        "Basic " + b64encode(b"me:SECRET").decode()
    }
    again: InputFile = pickle.loads(pickle.dumps(source))
    assert again == source
    assert lines_of(TextFeed(again, 1 << 20)) == lines_of(TextFeed(source, 1 << 20))


def test_other_schemes_are_refused_with_those_that_can_be_read() -> None:
    rule = "is in no store that can be read: s3://, s3a://, gs://, az://, abfs://, abfss://, http://, https://, gcs://"
    with refused(ConfigError, "input=fax://bucket/x", rule) as caught:
        find_files("input", "fax://bucket/x?token=SECRET")
    assert "SECRET" not in str(caught.value)


def test_folders_and_globs_of_a_store_work_like_those_of_a_disk(
    bucket: TaggedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path / "bucket")
    marked = ["dt=10/_SUCCESS", ".tmp/part-1", "dt=2/part-9.crc", "dt=2/empty"]
    for name in ["dt=2/part-10", "dt=2/part-9", "dt=10/more/part-0", *marked]:
        Path("lake", name).parent.mkdir(parents=True, exist_ok=True)
        Path("lake", name).write_bytes(b"" if "empty" in name else name.encode())
    root = f"s3://{tmp_path.name}-1/"
    globs = ["lake/dt=*", "lake/*/part-*", "lake/dt=?/part-[0-9]*", "lake/**/part-*", "l*/dt=2"]
    for name in [*globs, "lake", "lake/", "lake/dt=2", "lake/dt=2/part-9"]:
        local = [f"{root}{source.path}" for source in find_files("input", name)]
        assert [source.path for source in find_files("input", root + name)] == local != []
    for missing in (f"{root}lake/none*", f"{root}lake/*/none"):
        with refused(ConfigError, f"input={missing}", "has no file to read (...)"):
            find_files("input", missing)
    with refused(ConfigError, f"input={root}lake/none", "does not exist"):
        find_files("input", f"{root}lake/none")


@pytest.fixture
def many(bucket: TaggedStore, tmp_path: Path) -> str:
    """The URL of a folder of twenty objects."""
    (tmp_path / "bucket/many").mkdir()
    for number in range(20):
        (tmp_path / f"bucket/many/part-{number}").write_bytes(b"%d\n" % number)
    return f"s3://{tmp_path.name}-2/many"


def test_a_list_spares_asking_for_each_object(bucket: TaggedStore, many: str) -> None:
    sources = find_files("input", many)
    assert len({path for path in bucket.asked if "part-" in path and "*" not in path}) == 3
    assert [source.version for source in sources] == [
        (size, 0, tag) for size, tag in map(object_version, (address_of(source.path) for source in sources))
    ]
    bucket.asked.clear()
    check_unchanged(sources)
    assert len({path for path in bucket.asked if "*" not in path}) == 3


def test_lists_that_tell_other_versions_are_not_believed(bucket: TaggedStore, many: str) -> None:
    believed = [source.version for source in find_files("input", many)]
    bucket.lie = "x"
    assert [source.version for source in find_files("input", many)] == believed


@pytest.mark.parametrize(
    ("data", "said"),
    [(b"7\r", "changed while it was being read (2 bytes before, 2 now)"), (None, "does not exist")],
)
def test_an_object_of_many_that_changes_is_refused(
    many: str, tmp_path: Path, data: bytes | None, said: str
) -> None:
    sources = find_files("input", many)
    check_unchanged(sources)
    changed = tmp_path / "bucket/many/part-7"
    changed.unlink()
    if data is not None:
        changed.write_bytes(data)
    with refused(DataError, f"{many}/part-7", said):
        check_unchanged(sources)


def test_keys_regions_and_endpoints_of_a_profile_are_taken(
    flaky: FlakyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ~/.aws says reaches the store; the environment counts first."""
    pytest.importorskip("boto3", reason="boto3 is not installed: pip install boto3")
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/credentials").write_text(
        "[mine]\naws_access_key_id = MINE\naws_secret_access_key = SECRET\n"
    )
    (tmp_path / ".aws/config").write_text(
        f"[profile mine]\nregion = eu-north-1\nendpoint_url = {flaky.url}\n"
    )
    monkeypatch.setenv("AWS_PROFILE", "mine")
    flaky.put("/bucket/log", TEXT)
    assert object_version(address_of("s3://bucket/log"))[0] == len(TEXT)
    assert "Credential=MINE/" in flaky.headers[-1][1]["Authorization"]
    assert "/eu-north-1/" in flaky.headers[-1][1]["Authorization"]
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "OTHER")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "SECRET")
    monkeypatch.setenv("AWS_ENDPOINT_URL", flaky.url)
    assert object_version(address_of("s3://bucket/log"))[0] == len(TEXT)
    assert "Credential=OTHER/" in flaky.headers[-1][1]["Authorization"]
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_PROFILE", "other")
    with refused(DataError, "s3://bucket", "cannot be read (The config profile (other) could not be found)"):
        address_of("s3://bucket/log")


def test_an_object_in_memory_is_decoded_as_a_file(
    flaky: FlakyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By polars, after cut connections."""
    monkeypatch.setattr(remote_file, "MOST_BYTES", 1 << 20)
    draw = random.Random(0)
    rows = 30_000
    table = pa.table(
        {
            "text": [f"{draw.getrandbits(40):x}" for _ in range(rows)],
            "left": [draw.random() for _ in range(rows)],
            "number": [draw.randrange(1 << 40) for _ in range(rows)],
        }
    )
    pq.write_table(table, tmp_path / "log", row_group_size=12_000)
    (local,) = find_files("input", str(tmp_path / "log"))
    (source,) = find_files("input", flaky.put("/bucket/log", (tmp_path / "log").read_bytes()))
    columns, places = {"a": "number", "b": "text"}, []

    def decode(given: Any, *rest: Any) -> Any:
        places.extend(given)
        return decode_plain(given, *rest)

    monkeypatch.setattr(parquet_decoders, "decode_plain", decode)
    flaky.faults[:] = ["cut", None] * 5
    tables = [
        pa.concat_tables(
            unit.table.cast(pa.schema([("a", pa.int64()), ("b", pa.string())]))
            for number in range(len(units_of(each, 2, 1 << 20)))
            for unit in ParquetFeed(each, columns, 1 << 20, (number,)).prefetched().items()
        )
        for each in (local, source)
    ]
    assert tables[0].equals(tables[1])
    assert tables[1]["a"].to_pylist() == table["number"].to_pylist()
    assert any(place.startswith("/proc/self/fd/") for place in places)
