"""A file that has changed is noticed: by its size and date, by some of its bytes, or by all of them."""

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dlrm_app.dataset.splits import ManifestSource
from dlrm_app.logs.sources.find_sources import find_files
from dlrm_app.logs.sources.source import content_checksum, has_changed, sample_checksum


def corrected(path: Path, price: float) -> bytes:
    """A Parquet file of uncompressed pages without statistics, whose last price is ``price``."""
    table = pa.table({"clicked": [0, 1] * 40_000, "price": [float(n) for n in range(79_999)] + [price]})
    pq.write_table(table, path, compression="none", use_dictionary=False, write_statistics=False)
    return path.read_bytes()


def test_a_corrected_file_of_equal_footer_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    before, after = corrected(path, 1.0), corrected(tmp_path / "other.parquet", 2.0)
    assert len(before) == len(after)
    footer = 8 + int.from_bytes(before[-8:-4], "little")
    assert before[-footer:] == after[-footer:]
    assert before != after
    path.write_bytes(before)
    (source,) = find_files("input", str(path))
    version = source.bytes, source.modified_ns, source.tag
    known = ManifestSource(
        source.path, "train", source.bytes, content_checksum(source), 2, *version[1:], sample_checksum(source)
    )
    assert not has_changed(source, known, reads_all=True)
    path.touch()
    assert not has_changed(*find_files("input", str(path)), known)
    path.write_bytes(after)
    assert has_changed(*find_files("input", str(path)), known)
    os.utime(path, ns=(0, source.modified_ns))
    assert find_files("input", str(path))[0].version == version
    assert has_changed(*find_files("input", str(path)), known, reads_all=True)


def test_sampled_bytes_show_rows_in_another_order(tmp_path: Path) -> None:
    """A file written again with its old date, as rsync does, is seen by its samples alone."""
    lines = [f"{n % 2},{n}\n" for n in range(50_000)]
    path = tmp_path / "log.csv"
    path.write_text("".join(lines))
    (source,) = find_files("input", str(path))
    known = ManifestSource(
        source.path,
        "train",
        source.bytes,
        content_checksum(source),
        2,
        source.modified_ns,
        "",
        sample_checksum(source),
    )
    path.write_text("".join(reversed(lines)))
    os.utime(path, ns=(0, source.modified_ns))
    (now,) = find_files("input", str(path))
    assert now.version == source.version
    assert has_changed(now, known)
