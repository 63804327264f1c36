"""Objects of a store give the bytes of files, however connections behave; their credentials go to the driver alone."""

import gzip
import io
import json
import pickle
import random
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import hypothesis.strategies as st
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import HealthCheck, given, settings

from dlrm_app.errors import ConfigError, DataError
from dlrm_app.logs.sources import parquet_units, remote, remote_file
from dlrm_app.logs.sources.find_sources import find_files
from dlrm_app.logs.sources.parquet_units import ParquetFeed, units_of
from dlrm_app.logs.sources.plain_parquet import decode_plain
from dlrm_app.logs.sources.remote import address_of, look_at
from dlrm_app.logs.sources.remote_file import RemoteFile
from dlrm_app.logs.sources.source import InputFile, check_unchanged
from dlrm_app.logs.sources.unit_text import TextFeed
from tests.refusals import is_like, refused


class FlakyStore(MemoryFileSystem):
    """Objects in memory; ``faults``: what the next answers are: an error to raise, or a function of (path, bytes)."""

    protocol = "flaky"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    faults: ClassVar[list[Any]] = []
    asked: ClassVar[list[tuple[int, int]]] = []

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return MemoryFileSystem._strip_protocol(path.replace("flaky://", "memory://").split("?sig")[0])

    def unstrip_protocol(self, name: str) -> str:
        return f"flaky://{name.lstrip('/')}"

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        assert start is not None
        assert end is not None
        self.asked.append((start, end))
        data = super().cat_file(path, start=start, end=end)
        fault = self.faults.pop() if self.faults else None
        if isinstance(fault, Exception):
            raise fault
        return fault(path, data) if fault is not None else data


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """The pauses made, which take no time."""
    fsspec.register_implementation("flaky", FlakyStore, clobber=True)
    FlakyStore.store.clear()
    FlakyStore.faults.clear()
    FlakyStore.asked.clear()
    made: list[float] = []
    monkeypatch.setattr(remote.time, "sleep", made.append)
    monkeypatch.setattr(remote_file, "_PIECE", 1 << 12)
    monkeypatch.setattr(remote_file, "_SMALL", 1 << 8)
    monkeypatch.setattr(remote_file, "_MOST", 1 << 15)
    monkeypatch.setattr(remote_file, "_NEAR", 1 << 6)
    monkeypatch.setattr(remote, "KEPT_EACH", 1 << 8)
    yield made
    FlakyStore.faults.clear()


def put(name: str, data: bytes) -> str:
    FlakyStore().pipe_file(name, data)
    return f"flaky://{name[1:]}"


def lines_of(feed: TextFeed) -> list[tuple[bytes, int, int, bool]]:
    found = []
    for text in feed.items():
        lines = b"".join(block.text[block.start : block.stop].tobytes() for block in text.blocks())
        extent = text.finish()
        found.append((lines, extent.size, extent.crc, extent.is_last))
    return found


TEXT = b"".join(b"%d\t%x\n" % (n, n * 7919) for n in range(30_000))
FORMS = {"text": TEXT, "gzip": gzip.compress(TEXT), "zstd": pa.compress(TEXT, "zstd", asbytes=True)}


@pytest.mark.parametrize("form", FORMS)
def test_a_connection_cut_fifty_times_gives_the_same_units(
    pauses: list[float], tmp_path: Path, form: str
) -> None:
    path = tmp_path / "log"
    path.write_bytes(FORMS[form])
    (local,) = find_files("input", str(path))
    (source,) = find_files("input", put("/bucket/log", FORMS[form]))
    assert source.format == local.format == form
    FlakyStore.faults[:] = [
        ConnectionResetError("cut"),
        None,
        TimeoutError("late"),
        lambda _, data: data[:100],
    ] * 25
    unit_bytes = 30_000
    assert lines_of(TextFeed(source, unit_bytes)) == lines_of(TextFeed(local, unit_bytes))
    assert len(pauses) >= 40
    if form == "text":
        units = range(-(-len(TEXT) // unit_bytes))
        feeds = [TextFeed(source, unit_bytes, unit, unit + 1) for unit in units]
        assert [unit for feed in feeds for unit in lines_of(feed)] == lines_of(TextFeed(local, unit_bytes))


def test_parquet_is_read_by_the_columns_that_are_asked_for(pauses: list[float], tmp_path: Path) -> None:
    draw = random.Random(0)
    table = pa.table({name: [draw.random() for _ in range(20_000)] for name in "abcdef"})
    pq.write_table(table, tmp_path / "log.parquet", row_group_size=9_000)
    data = (tmp_path / "log.parquet").read_bytes()
    (source,) = find_files("input", put("/bucket/dt=5/log.parquet", data))
    columns = {"first": "b", "day": "dt", "second": "e"}
    units = units_of(source, 3, 50_000)
    FlakyStore.faults[:] = [ConnectionResetError("cut"), None] * 20
    FlakyStore.asked.clear()
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
    assert len(pauses) == 20
    read = {byte for start, stop in FlakyStore.asked for byte in range(start, stop)}
    assert len(read) < len(data) / 2


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.integers(0, 60_000),
    st.lists(st.integers(0, 60_000), max_size=16),
    st.lists(st.tuples(st.integers(0, 60_000), st.integers(0, 9_000)), max_size=12),
)
def test_any_reads_give_the_bytes_of_a_file(
    pauses: list[float], size: int, cuts: list[int], reads: list[tuple[int, int]]
) -> None:
    data = random.Random(size).randbytes(size)
    address = address_of(put("/bucket/any", data))
    ends = sorted({min(cut, size) for cut in cuts})
    apart = list(zip(ends[::2], ends[1::2], strict=False))  # as the parts of a file are
    plain = io.BytesIO(data)
    with io.BufferedReader(RemoteFile(address, look_at(address), apart), 100) as file:
        for at, count in reads:
            file.seek(at)
            plain.seek(at)
            assert file.read(count) == plain.read(count)
            assert file.tell() == plain.tell()


def test_no_more_than_the_next_pieces_is_held(pauses: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    data = random.Random(0).randbytes(1 << 18)
    address = address_of(put("/bucket/large", data))
    with RemoteFile(address, look_at(address), [(0, len(data))]) as file:
        read = b""
        while part := file.read(5_000):
            read += part
            held = max(stop for _, stop in FlakyStore.asked) - len(read)
            assert held <= 5 * remote_file._PIECE
    assert read == data
    assert len(FlakyStore.asked) == len(data) // remote_file._PIECE


def test_pauses_grow_and_end_with_the_reason(pauses: list[float]) -> None:
    address = address_of(put("/bucket/log", TEXT))
    version = look_at(address)
    FlakyStore.faults[:] = [ConnectionResetError("cut by https://me:secret@proxy/x?token=secret")] * 50
    with refused(
        DataError, "flaky://bucket/log", "cannot be read (ConnectionResetError: cut by https://proxy/x)"
    ) as caught:
        remote.fetch(address, 0, 10, version)
    assert "secret" not in str(caught.value)
    assert pauses == sorted(pauses)
    assert pauses[-1] > 50 * pauses[0]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (PermissionError("Forbidden"), "must not be read: there is no permission"),
        (FileNotFoundError("gone"), "does not exist"),
        (lambda _, data: data + b"more", "is on a server that does not give parts of files"),
    ],
)
def test_what_will_not_pass_is_refused_at_once(pauses: list[float], fault: Any, said: str) -> None:
    url = put("/bucket/log", TEXT)
    FlakyStore.faults[:] = [fault]
    with pytest.raises(ConfigError) as caught:
        find_files("input", url)
    (problem,) = caught.value.problems
    assert is_like(problem, f"input={url}", said)
    assert pauses == []


def test_an_object_that_shrinks_while_it_is_read_is_refused(pauses: list[float]) -> None:
    (source,) = find_files("input", put("/bucket/log", TEXT))

    def replace(path: str, data: bytes) -> bytes:
        FlakyStore().pipe_file(path, TEXT[:5_000])
        return data

    FlakyStore.faults[:] = [replace]
    with refused(
        DataError, "flaky://bucket/log", "changed while it was being read (406,626 bytes before, 5,000 now)"
    ):
        lines_of(TextFeed(source, 1 << 20))


def test_an_object_replaced_by_one_of_the_same_size_is_another(pauses: list[float]) -> None:
    (source,) = find_files("input", put("/bucket/log", TEXT))
    check_unchanged([source])
    put("/bucket/log", TEXT[::-1])
    with refused(
        DataError, "flaky://bucket/log", "changed while it was being read (406,626 bytes before, 406,626 now)"
    ):
        check_unchanged([source])


def test_folders_and_globs_of_a_store_are_those_of_a_disk(
    pauses: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    marked = ["dt=10/_SUCCESS", ".tmp/part-1", "dt=2/part-9.crc", "dt=2/empty"]
    for name in ["dt=2/part-10", "dt=2/part-9", "dt=10/more/part-0", *marked]:
        Path("lake", name).parent.mkdir(parents=True, exist_ok=True)
        data = b"" if "empty" in name else name.encode()
        Path("lake", name).write_bytes(data)
        put(f"/lake/{name}", data)
    globs = ["lake/dt=*", "lake/*/part-*", "lake/dt=?/part-[0-9]*"]
    for name in [*globs, "lake", "lake/dt=2", "lake/dt=2/part-9"]:
        local = [f"flaky://{source.path}" for source in find_files("input", name)]
        assert [source.path for source in find_files("input", f"flaky://{name}")] == local != []
    for missing in ("flaky://lake/none*", "flaky://lake/*/none"):
        with refused(ConfigError, f"input={missing}", "has no file to read (...)"):
            find_files("input", missing)


def test_credentials_reach_the_driver_and_nothing_else(pauses: list[float]) -> None:
    put("/bucket/log", TEXT)
    url = "flaky://bucket/log?sig=SECRET"
    (source,) = find_files("input", url)
    assert source.path == "flaky://bucket/log"
    assert "SECRET" not in f"{source} {source!r} {json.dumps(asdict(source))}"
    assert isinstance(source.path, remote.Address)
    assert source.path.url == url
    again: InputFile = pickle.loads(pickle.dumps(source))
    assert again == source
    assert lines_of(TextFeed(again, 1 << 20)) == lines_of(TextFeed(source, 1 << 20))


def test_a_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with refused(ConfigError, "input=gs://bucket/x", "needs the driver of gs://, which is missing") as caught:
        find_files("input", "gs://bucket/x?token=SECRET")
    assert "SECRET" not in str(caught.value)
    with refused(ConfigError, "input=fax://bucket/x", "cannot be read (Protocol not known: fax)"):
        find_files("input", "fax://bucket/x")


class TaggedStore(FlakyStore):
    """Tells tags, in lists too; ``lie`` is added to those of lists. ``infos``: the objects that it was asked for."""

    protocol = "tagged"
    lie: ClassVar[str] = ""
    infos: ClassVar[list[str]] = []

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return FlakyStore._strip_protocol(path.replace("tagged://", "memory://"))

    def unstrip_protocol(self, name: str) -> str:
        return f"tagged://{name.lstrip('/')}"

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        self.infos.append(path)
        return self._tagged(super().info(path))

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        return bytes(self.store[self._strip_protocol(path)].getvalue()[start:end])

    def find(self, path: str, detail: bool = False, **_: Any) -> Any:
        found = super().find(path, detail=True)
        return {name: self._tagged(each, self.lie) for name, each in found.items()} if detail else [*found]

    def _tagged(self, info: dict[str, Any], lie: str = "") -> dict[str, Any]:
        if info["type"] != "file":
            return info
        data = self.store[info["name"]].getvalue()
        return {"name": info["name"], "size": info["size"], "type": "file", "ETag": f'"{hash(data)}{lie}"'}


@pytest.fixture
def tagged(pauses: list[float]) -> str:
    """The URL of a folder of twenty objects."""
    fsspec.register_implementation("tagged", TaggedStore, clobber=True)
    for number in range(20):
        put(f"/many/part-{number}", b"%d\n" % number)
    TaggedStore.infos.clear()
    return "tagged://many"


def test_a_list_spares_asking_for_each_object(tagged: str) -> None:
    sources = find_files("input", tagged)
    assert len({*TaggedStore.infos} & {f"/many/part-{number}" for number in range(20)}) == 3
    assert [source.version for source in sources] == [
        (size, 0, tag) for size, tag in map(look_at, (address_of(source.path) for source in sources))
    ]
    TaggedStore.infos.clear()
    check_unchanged(sources)
    assert len({*TaggedStore.infos} & {f"/many/part-{number}" for number in range(20)}) == 3


def test_lists_that_tell_other_versions_are_not_believed(
    tagged: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    believed = [source.version for source in find_files("input", tagged)]
    monkeypatch.setattr(TaggedStore, "lie", "x")
    assert [source.version for source in find_files("input", tagged)] == believed


@pytest.mark.parametrize(
    ("data", "said"),
    [(b"7\r", "changed while it was being read (2 bytes before, 2 now)"), (None, "does not exist")],
)
def test_an_object_of_many_that_changes_is_refused(tagged: str, data: bytes | None, said: str) -> None:
    sources = find_files("input", tagged)
    check_unchanged(sources)
    if data is None:
        FlakyStore().rm("/many/part-7")
    else:
        put("/many/part-7", data)
    with refused(DataError, "tagged://many/part-7", said):
        check_unchanged(sources)


def test_an_object_in_memory_is_decoded_as_a_file(
    pauses: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By polars, after cut connections, with the columns that Arrow decodes beside them."""
    monkeypatch.setattr(remote_file, "_MOST", 1 << 20)
    draw = random.Random(0)
    rows = 30_000
    table = pa.table(
        {
            "text": [f"{draw.getrandbits(40):x}" for _ in range(rows)],
            "left": [draw.random() for _ in range(rows)],
            "lists": [[draw.randrange(9)] for _ in range(rows)],
            "number": [draw.randrange(1 << 40) for _ in range(rows)],
        }
    )
    pq.write_table(table, tmp_path / "log", row_group_size=12_000)
    (local,) = find_files("input", str(tmp_path / "log"))
    (source,) = find_files("input", put("/bucket/log", (tmp_path / "log").read_bytes()))
    columns, places = {"a": "number", "b": "text", "c": "lists"}, []

    def decode(given: Any, *rest: Any) -> Any:
        places.extend(given)
        return decode_plain(given, *rest)

    monkeypatch.setattr(parquet_units, "decode_plain", decode)
    FlakyStore.faults[:] = [ConnectionResetError("cut"), None] * 5
    tables = [
        pa.concat_tables(
            unit.table.cast(pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.list_(pa.int64()))]))
            for number in range(len(units_of(each, 3, 1 << 22)))
            for unit in ParquetFeed(each, columns, 1 << 22, (number,)).prefetched().items()
        )
        for each in (local, source)
    ]
    assert tables[0].equals(tables[1])
    assert tables[1]["a"].to_pylist() == table["number"].to_pylist()
    assert any(place.startswith("/proc/self/fd/") for place in places)


def test_a_store_of_amazons_has_connections_for_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("s3fs", reason="s3fs is not installed: pip install s3fs")
    assert remote._store("s3://bucket/a")[0].config_kwargs == {"max_pool_connections": remote.AT_ONCE}
    monkeypatch.setitem(
        fsspec.config.conf, "s3", {"config_kwargs": {"max_pool_connections": 3, "region_name": "x"}}
    )
    assert remote._store("s3://bucket/a")[0].config_kwargs == {"max_pool_connections": 3, "region_name": "x"}
