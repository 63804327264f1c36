"""Files that are no logs are refused by their first bytes, by name; logs that begin alike are read."""

import bz2
import gzip
import io
import json
import lzma
import pickle
import random
import sqlite3
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.orc
import pyarrow.parquet as pq
import pytest

from dlrm_app.errors import ConfigError
from dlrm_app.logs.sources.find_sources import find_files
from tests.preprocessing.running import run
from tests.refusals import refused

ROWS = "".join(f"{row % 2},{row % 7},u{row % 9}\n" for row in range(300))
LOG = f"click,x,user\n{ROWS}".encode()
TABLE = pa.table({"click": [0, 1] * 150, "user": ["a", "b", "c"] * 100})
JSON = [{"click": row % 2, "tags": ["a", "b"], "user": f"u{row % 9}"} for row in range(300)]


def written(write: Callable[[io.BytesIO], object]) -> bytes:
    write(file := io.BytesIO())
    return file.getvalue()


def tar(form: int = tarfile.PAX_FORMAT) -> bytes:
    def write(file: io.BytesIO) -> None:
        with tarfile.open(fileobj=file, mode="w", format=form) as archive:
            member = tarfile.TarInfo("a.csv")
            member.size = len(LOG)
            archive.addfile(member, io.BytesIO(LOG))

    return written(write)


def zipped(*names: str, content: bytes = LOG, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    def write(file: io.BytesIO) -> None:
        with zipfile.ZipFile(file, "w", method) as archive:
            for name in names:
                archive.writestr(name, content)

    return written(write)


def zstd(content: bytes) -> bytes:
    packed: bytes = pa.Codec("zstd").compress(content, asbytes=True)
    return packed


def ipc_stream(file: io.BytesIO) -> None:
    with pa.ipc.new_stream(file, TABLE.schema) as stream:
        stream.write_table(TABLE)


def sqlite(folder: Path) -> bytes:
    with sqlite3.connect(folder / "log.db") as database:
        database.execute("create table clicks (click, user)")
    return (folder / "log.db").read_bytes()


OTHERS: dict[str, tuple[bytes, str]] = {
    "tar": (tar(), "a tar archive"),
    "tar_gnu": (tar(tarfile.GNU_FORMAT), "a tar archive"),
    "tar_v7": (tar().replace(b"ustar\x0000", bytes(8), 1), "a tar archive"),
    "tar_gz": (gzip.compress(tar()), "a tar archive within gzip"),
    "tar_zst": (zstd(tar()), "a tar archive within zstd"),
    "zip": (zipped("a.csv", "b.csv"), "a zip archive"),
    "empty_zip": (zipped(), "a zip archive"),
    "npz": (written(lambda file: np.savez(file, click=np.arange(9))), "npz, ..."),
    "npz_packed": (written(lambda file: np.savez_compressed(file, a=np.arange(9))), "npz, ..."),
    "npy": (written(lambda file: np.save(file, np.arange(9))), "npy, ..."),
    "xlsx": (zipped("[Content_Types].xml", "xl/workbook.xml"), "...xlsx (Excel)..."),
    "openpyxl": (zipped("docProps/app.xml", "xl/workbook.xml"), "...xlsx (Excel)..."),
    "docx": (zipped("_rels/.rels", "word/document.xml"), "...docx (Word)"),
    "ods": (
        zipped("mimetype", content=b"application/vnd.oasis.opendocument.spreadsheet", method=0),
        "...such as ods",
    ),
    "xls": (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600), "...such as xls"),
    "7z": (b"7z\xbc\xaf\x27\x1c\0\4" + bytes(600), "a 7z archive"),
    "rar": (b"Rar!\x1a\x07\x01\0" + bytes(600), "a rar archive"),
    "bzip2": (bz2.compress(LOG), "compressed by bzip2"),
    "bzip2_fast": (bz2.compress(LOG, 1), "compressed by bzip2"),
    "xz": (lzma.compress(LOG), "compressed by xz"),
    "lzma": (lzma.compress(LOG, lzma.FORMAT_ALONE), "compressed by lzma"),
    "lz4": (pa.compress(LOG, "lz4", asbytes=True), "compressed by lz4"),
    "zlib": (zlib.compress(LOG), "compressed by zlib"),
    "gzip_twice": (gzip.compress(gzip.compress(LOG)), "gzip within gzip"),
    "zip_in_gzip": (gzip.compress(zipped("a.csv")), "a zip archive within gzip"),
    "parquet_in_gzip": (gzip.compress(b"PAR1" + bytes(99)), "Parquet within gzip"),
    "encrypted_parquet": (b"PARE" + bytes(99), "Parquet with an encrypted footer"),
    "orc": (written(lambda file: pyarrow.orc.write_table(TABLE, file)), "ORC"),
    "avro": (b"Obj\x01\x04\x14avro.codec\x08null\x16avro.schema" + bytes(99), "Avro"),
    "hdf5": (b"\x89HDF\r\n\x1a\n" + bytes(600), "HDF5"),
    "feather": (written(lambda file: pyarrow.feather.write_feather(TABLE, file)), "Arrow (feather)"),
    "feather_1": (b"FEA1" + bytes(600), "Arrow (feather)"),
    "ipc_stream": (written(ipc_stream), "a stream of Arrow"),
    "pickle": (pickle.dumps(JSON), "a pickle of Python"),
    "pickle_2": (pickle.dumps(JSON, 2), "a pickle of Python"),
    "tfrecord": (struct.pack("<Q", 900) + b"\x81\x42\x9c\x01" + LOG, "TFRecord..."),
    "duckdb": (b"checksum" + b"DUCK@" + bytes(99), "a DuckDB database"),
    "json_lines": ("".join(f"{json.dumps(row)}\n" for row in JSON).encode(), "JSON lines"),
    "json_lines_gz": (
        gzip.compress("".join(f"{json.dumps(row)}\n" for row in JSON).encode()),
        "JSON lines within gzip",
    ),
    "json_long_lines": ((json.dumps({"a": "x" * 900}) + "\n").encode(), "JSON lines"),
    "json": (json.dumps(JSON).encode(), "JSON"),
    "json_indented": (json.dumps(JSON, indent=2).encode(), "JSON"),
    "json_object": (json.dumps(JSON[0], indent=2).encode(), "JSON"),
    "html": (b"\n<!DOCTYPE html>\n<html><body>Log in</body></html>", "an HTML page"),
    "zeros": (bytes(4096), "filled with zeros..."),
    "html_marked": (b"\xef\xbb\xbf<html>", "an HTML page"),
    "html_bare": (b"<HTML><HEAD><TITLE>404</TITLE>", "an HTML page"),
    "xml": (b'<?xml version="1.0"?>\n<Error><Code>AccessDenied</Code></Error>', "XML"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n", "a Git LFS pointer"),
    "annex": (b"/annex/objects/SHA256E-s9--00.csv\n", "a git-annex pointer"),
    "utf_16": (LOG.decode().encode("utf-16"), "UTF-16"),
    "utf_16_bare": (LOG.decode().encode("utf-16-le"), "UTF-16"),
    "utf_32": (LOG.decode().encode("utf-32"), "UTF-32"),
    "random": (random.Random(1).randbytes(4096), "no text"),
    "pdf": (b"%PDF-1.7\n%\xe2\xe3", "a PDF"),
}


@pytest.mark.parametrize("kind", [*OTHERS, "sqlite"])
def test_a_file_of_another_kind_is_refused_by_name(kind: str, tmp_path: Path) -> None:
    """Whatever it is called, and by all commands alike, which find their files here."""
    content, what = OTHERS.get(kind) or (sqlite(tmp_path), "an SQLite database")
    (path := tmp_path / "log.csv").write_bytes(content)
    with refused(ConfigError, f"input={path}", f"is {what}") as caught:
        find_files("input", str(path))
    assert all(problem.cure for problem in caught.value.problems)


LOGS: dict[str, bytes] = {
    "csv": LOG,
    "tsv": LOG.replace(b",", b"\t"),
    "hive": LOG.replace(b",", b"\x01"),
    "separators_of_ascii": LOG.replace(b",", b"\x1f"),
    "orc": b"ORC,b\n" + ROWS.encode(),
    "orc_bytes": "ORCÄ,b\n".encode() + ROWS.encode(),
    "pk": b"PK,b\n" + ROWS.encode(),
    "x": b"X\n" * 99,
    "bzh": b"BZh9,1\n" * 99,
    "obj": b"Obj,1\n" * 99,
    "ids": b"070701ab\t1\n" * 99,
    "json_first": b'{"a": 1}\t0\t5\n' * 99,
    "json_and_commas": b'{"a": 1},0\n' * 99,
    "brackets": b"[1, 2]\t0\n" * 99,
    "angles": b"<a>\t0\n" * 99,
    "version": b"version https://example.org\n" * 9,
    "latin": "café,straße\n".encode("latin-1") * 99,
    "gbk": "点击,用户\n".encode("gbk") * 99,
    "marked": b"\xef\xbb\xbf" + LOG,
    "nul": b"a\0,1\n" + LOG,
    "short": b"0,1\n",
    "md5": b"md5,1\n",
}


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstd])
@pytest.mark.parametrize("kind", LOGS)
def test_a_log_that_begins_alike_is_read(kind: str, pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    (path := tmp_path / "log.csv").write_bytes(pack(LOGS[kind]))
    (source,) = find_files("input", str(path))
    assert source.format == {bytes: "text", gzip.compress: "gzip"}.get(pack, "zstd")


def test_one_archive_among_logs_stops_preprocess_before_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("log").mkdir()
    Path("log/a.csv").write_bytes(LOG)
    Path("log/b.csv").write_bytes(gzip.compress(tar()))
    pq.write_table(TABLE, "log/c.csv")
    with refused(
        ConfigError, "input.train=log/b.csv", "is a tar archive within gzip", "unpack it (tar -xf)..."
    ):
        run(Path("out"), "dataset=example_csv", "input.train=log")
    assert not Path("out").exists()
