"""Kinds of files, recognized by their first bytes: those that are read, and others by name, with a cure.

Every command that finds input files calls ``format_of_beginning``; the tables below are the only ones of their kind.
"""

import json
import re
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from dlrm_app.dataset.parquet import MAGIC as PARQUET_MAGIC

NUM_BYTES = 512
"""The number of first bytes by which a file is recognized."""
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_READ = {PARQUET_MAGIC: "parquet", b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
_UNPACK = "unpack it ({}), and name the files that it holds"
_PACK = "unpack it ({}), or pack it by gzip or zstd"
_REWRITE = "write it as Parquet, such as {}"
_AGAIN = "download it again"
_MEMBER = rb"PK\x03\x04.{26}[\x20-\x7e]{,200}?"
_NO_TEXT = "text must be UTF-8, plain or packed by gzip or zstd"


class OtherFile(NamedTuple):
    """A file that is not read: what it is, and what to do."""

    what: str
    cure: str


_OTHERS: dict[bytes, OtherFile] = {
    rb"PAR1": OtherFile("Parquet", "unpack it; Parquet is compressed within"),
    rb"PARE": OtherFile("Parquet with an encrypted footer", "write it without encryption"),
    rb"\x1f\x8b": OtherFile("gzip", "pack it once"),
    rb"\x28\xb5\x2f\xfd": OtherFile("zstd", "pack it once"),
    rb"[\x50-\x5f]\x2a\x4d\x18": OtherFile("zstd or lz4 of another form (pzstd)", "pack it again by zstd"),
    # archives
    rb".{257}ustar|(?=[^\0]{1,99}\0).{148}[0-7 ]{6}\0 ": OtherFile(
        "a tar archive", _UNPACK.format("tar -xf")
    ),
    _MEMBER + rb"\.npy": OtherFile(
        "npz, arrays of NumPy", _REWRITE.format("pandas.DataFrame(dict(numpy.load(PATH)))")
    ),
    rb"PK\x03\x04.{26}(\[Content_Types\]\.xml|_rels/|docProps/|xl/|word/|ppt/)": OtherFile(
        "a document of Office, such as xlsx (Excel) or docx (Word)", "save its table as CSV in UTF-8"
    ),
    rb"PK\x03\x04.{26}mimetypeapplication/vnd\.oasis": OtherFile(
        "a document of LibreOffice, such as ods", "save its table as CSV in UTF-8"
    ),
    _MEMBER + rb"/data\.pkl": OtherFile("a file of torch.save", "name logs of rows"),
    rb"PK(\x03\x04|\x05\x06|\x07\x08)": OtherFile("a zip archive", _UNPACK.format("unzip")),
    rb"7z\xbc\xaf\x27\x1c": OtherFile("a 7z archive", _UNPACK.format("7z x")),
    rb"Rar!\x1a\x07": OtherFile("a rar archive", _UNPACK.format("unrar x")),
    rb"!<arch>\n": OtherFile("an ar archive", _UNPACK.format("ar x")),
    rb"07070[12][0-9a-fA-F]{104}": OtherFile("a cpio archive", _UNPACK.format("cpio -i")),
    # compression
    rb"BZh[1-9](1AY&SY|\x17rE8P\x90)": OtherFile("compressed by bzip2", _PACK.format("bunzip2")),
    rb"\xfd7zXZ\0": OtherFile("compressed by xz", _PACK.format("unxz")),
    rb"\x5d\0\0": OtherFile("compressed by lzma", _PACK.format("unlzma")),
    rb"LZIP[\0\1]": OtherFile("compressed by lzip", _PACK.format("lzip -d")),
    rb"\x04\x22\x4d\x18|\x02\x21\x4c\x18": OtherFile("compressed by lz4", _PACK.format("unlz4")),
    rb"\xff\x06\0\0sNaPpY": OtherFile("compressed by snappy", _PACK.format("snzip -d")),
    rb"\x89LZO\0": OtherFile("compressed by lzop", _PACK.format("lzop -d")),
    rb"\x1f\x9d": OtherFile("compressed by compress (.Z)", _PACK.format("uncompress")),
    rb"x[\x9c\xda](?=.*[\0\4-\x08\x0e-\x1a])": OtherFile(
        "compressed by zlib", _PACK.format("zlib.decompress in Python")
    ),
    # tables of other programs
    rb"ORC(?=.*[\0\4-\x08\x0e-\x1a])": OtherFile(
        "ORC", _REWRITE.format("pandas.read_orc(PATH).to_parquet(NEW)")
    ),
    rb"Obj\x01(?=.*avro\.)": OtherFile("Avro", _REWRITE.format("by Spark or polars.read_avro(PATH)")),
    rb"\x89HDF\r\n\x1a\n": OtherFile("HDF5", _REWRITE.format("pandas.read_hdf(PATH).to_parquet(NEW)")),
    rb"ARROW1|FEA1": OtherFile(
        "Arrow (feather)", _REWRITE.format("pandas.read_feather(PATH).to_parquet(NEW)")
    ),
    rb"\xff\xff\xff\xff.{2}\0\0": OtherFile(
        "a stream of Arrow", _REWRITE.format("pyarrow.ipc.open_stream(PATH)")
    ),
    rb"\x93NUMPY": OtherFile("npy, an array of NumPy", _REWRITE.format("pandas.DataFrame(numpy.load(PATH))")),
    rb"\x80[\x02-\x05]": OtherFile(
        "a pickle of Python", _REWRITE.format("pandas.read_pickle(PATH).to_parquet(NEW)")
    ),
    rb"SQLite format 3\0": OtherFile(
        "an SQLite database", "export its table: sqlite3 -header -csv PATH 'SELECT …'"
    ),
    rb".{8}DUCK.\0{7}": OtherFile("a DuckDB database", "export its table: COPY … TO 'NEW.parquet'"),
    rb"SEQ[\x04-\x06]": OtherFile("a SequenceFile of Hadoop", _REWRITE.format("by Spark or Hive")),
    rb"RCF\x01": OtherFile("an RCFile of Hive", _REWRITE.format("by Spark or Hive")),
    rb"\0{64}": OtherFile("filled with zeros, as by a download that stopped", _AGAIN),
    rb"\0{12}\xc2\xea\x81\x60": OtherFile(
        "data of SAS", _REWRITE.format("pandas.read_sas(PATH).to_parquet(NEW)")
    ),
    rb".{1,3}\0{5,7}.{4}": OtherFile(
        "TFRecord, or other binary data", _REWRITE.format("by tensorflow or polars")
    ),
    rb"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": OtherFile(
        "a document of Office, such as xls", "save its table as CSV in UTF-8"
    ),
    rb"X\n\0\0\0[\2\3]|RD[AX][23]\n": OtherFile("data of R", _REWRITE.format("arrow::write_parquet in R")),
    rb"MATLAB 5\.0 MAT": OtherFile("data of MATLAB", _REWRITE.format("by scipy.io.loadmat and pandas")),
    rb"<stata_dta>": OtherFile("data of Stata", _REWRITE.format("pandas.read_stata(PATH).to_parquet(NEW)")),
    rb"\$FL[23]@\(#\)": OtherFile("data of SPSS", _REWRITE.format("pandas.read_spss(PATH).to_parquet(NEW)")),
    rb"%PDF-": OtherFile("a PDF", "export its table as CSV in UTF-8"),
    rb"\x89PNG\r\n|\xff\xd8\xff|GIF8[79]a": OtherFile("an image", _AGAIN),
    rb"\x7fELF|MZ.{2}\0": OtherFile("a program", _AGAIN),
    # text that is not a table
    rb"\xff\xfe\0\0|\0\0\xfe\xff": OtherFile("UTF-32", _NO_TEXT),
    rb"\xff\xfe|\xfe\xff|([^\0]\0){8}|(\0[^\0]){8}": OtherFile(
        "UTF-16", f"{_NO_TEXT}: iconv -f UTF-16 -t UTF-8"
    ),
    rb"\s*(<!--.{,300}?-->\s*)?<(?i:!doctype html|html|head|body)\b": OtherFile(
        "an HTML page", f"{_AGAIN}: a server sent it in place of the file, as for a login or an error"
    ),
    rb"\s*<(\?xml|Error>)": OtherFile("XML", f"{_AGAIN} if a server sent it in place of the file"),
    rb"version https://(git-lfs\.github\.com|hawser\.github\.com)/spec": OtherFile(
        "a Git LFS pointer", "fetch the file that it stands for: git lfs pull"
    ),
    rb"/annex/objects/": OtherFile("a git-annex pointer", "fetch the file that it stands for: git annex get"),
    rb"outs:\n- |md5: [0-9a-f]{32}\n": OtherFile(
        "a pointer of DVC", "fetch the file that it stands for: dvc pull"
    ),
    rb"-----BEGIN PGP |Salted__": OtherFile("encrypted", "decrypt it"),
}
"""A pattern of a file's first bytes → the kind of file, which is not read; the first pattern that fits counts."""
_JSON = OtherFile("JSON", _REWRITE.format("pandas.read_json(PATH).to_parquet(NEW)"))
_JSON_LINES = OtherFile("JSON lines", _REWRITE.format("pandas.read_json(PATH, lines=True).to_parquet(NEW)"))
_BINARY = OtherFile("no text", _NO_TEXT)
_CONTROLS = bytes({*range(32)} - {*b"\x01\x02\x03\t\n\r\x1b\x1c\x1d\x1e\x1f"})
"""Bytes that are neither text nor delimiters."""
_BINARY_SHARE, _LEAST = 0.05, 64
"""The share of such bytes that no text has, and the least number of bytes to tell."""


def format_of_beginning(beginning: bytes, text_of: Callable[[str], bytes]) -> tuple[str, OtherFile | None]:
    """Returns (text, gzip, zstd or parquet; what the file is if it is not read).

    ``beginning``: its first bytes; ``text_of``: format → its first bytes, decompressed.
    """
    format = next((name for magic, name in _READ.items() if beginning.startswith(magic)), "text")
    if format == "parquet":
        return format, None
    if format == "text":
        return format, _other_file(beginning[:NUM_BYTES])
    other = _other_file(text_of(format)[:NUM_BYTES])
    return format, other and other._replace(what=f"{other.what} within {format}")


def _other_file(beginning: bytes) -> OtherFile | None:
    beginning = beginning.removeprefix(BYTE_ORDER_MARK)
    for pattern, other in _OTHERS.items():
        if re.match(pattern, beginning, re.DOTALL):
            return other
    if found := _json(beginning.decode("utf-8", "replace")):
        return found
    num_controls = len(beginning) - len(beginning.translate(None, _CONTROLS))
    return _BINARY if len(beginning) >= _LEAST and num_controls > _BINARY_SHARE * len(beginning) else None


def _json(text: str) -> OtherFile | None:
    """JSON in lines or as one value. Lines that only begin with a column of JSON are not."""
    if not re.match(r'\s*(\[\s*)?\{\s*("([^"\\]|\\.)*"\s*:|\}|$)', text):
        return None
    line = text.strip().partition("\n")[0]
    with suppress(ValueError):
        end = json.JSONDecoder().raw_decode(line)[1]
        return _JSON_LINES if line[end:].strip() in ("", ",") else None
    return (
        _JSON_LINES if line.startswith("{") and '"' in line and not re.match(r"\s*\{\s*\n", text) else _JSON
    )
