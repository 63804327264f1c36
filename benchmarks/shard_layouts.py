"""What the settings of ``layout`` cost: nanoseconds of CPU per row to write and to read, and bytes; a Markdown table.

    pip install 'dlrm-app[bench]'
    python benchmarks/shard_layouts.py                  # 200,000 rows as dlrm-generate makes them
    python benchmarks/shard_layouts.py train.txt        # of a file of one's own, in the format of Criteo Kaggle

Writing is what follows on encoding: dictionaries, packing, compression, checksums, into memory. Reading is pyarrow's, one
row group after the other, checksums verified, as dlrm-train does it. Medians of eight rounds.
"""

import io
import statistics
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from preprocess import write_clicks

from dlrm_app.config.compose import compose_config
from dlrm_app.config.preprocess import PreprocessConfig
from dlrm_app.dataset.shards import ShardLayout, ShardWriter
from dlrm_app.preprocess.encode.columns import dense_columns, hash_columns
from dlrm_app.preprocess.encode.encoder import Encoder
from dlrm_app.preprocess.passes.passes import Cursor
from dlrm_app.preprocess.read.parser import Parser
from dlrm_app.preprocess.read.spec import read_spec
from dlrm_app.preprocess.units.source import find_sources
from dlrm_app.preprocess.units.units import TextFeed

ROUNDS = 8
NUM_ROWS = 200_000
LAYOUTS = {
    "default: zstd 1, groups of 32,768": ShardLayout(32_768, "zstd", 1),
    "groups of 8,192": ShardLayout(8_192, "zstd", 1),
    "groups of 16,384": ShardLayout(16_384, "zstd", 1),
    "groups of 65,536": ShardLayout(65_536, "zstd", 1),
    "zstd 3": ShardLayout(32_768, "zstd", 3),
    "`layout.compression=lz4`": ShardLayout(32_768, "lz4", None),
    "`layout.compression=none`": ShardLayout(32_768, "none", None),
}


class Clicks:
    """The rows of a file, encoded anew whenever they are asked for."""

    def __init__(self, path: Path) -> None:
        overrides = ["dataset=criteo_kaggle", f'input.train="{path}"', "output=unused"]
        config = compose_config(
            "preprocess", PreprocessConfig, [*overrides, "encoding.num_embeddings=100_000"]
        )
        self.spec = read_spec(config.dataset)
        self.source = find_sources(config.input)[0]
        columns = dense_columns(config, self.spec, None), hash_columns(config, self.spec)
        self.encoder = Encoder(self.spec, *columns, Path())

    def write(self, layout: ShardLayout) -> tuple[bytes, float, int]:
        """(the file, seconds of CPU for writing alone, rows)."""
        file, seconds = io.BytesIO(), 0.0
        writer = ShardWriter(file, layout, self.encoder.schema)
        for text in TextFeed(self.source, 1 << 40).items():
            for raw in Cursor(text, self.spec).rows(Parser(self.spec, layout.row_group_rows), None):
                encoded = self.encoder.encode(raw)
                start = time.thread_time()
                writer.write(encoded)
                seconds += time.thread_time() - start
        start = time.thread_time()
        shard = writer.finish()
        return file.getvalue(), seconds + time.thread_time() - start, shard.rows


def write_by_pyarrow(table: pa.Table) -> tuple[bytes, float]:
    """(the file, seconds of CPU): zstd 1, dictionaries for all columns."""
    file = io.BytesIO()
    start = time.thread_time()
    pq.write_table(
        table, file, row_group_size=32_768, compression="zstd", compression_level=1, write_page_checksum=True
    )
    return file.getvalue(), time.thread_time() - start


def read(data: bytes) -> float:
    """Seconds of CPU."""
    start = time.thread_time()
    with pq.ParquetFile(io.BytesIO(data), page_checksum_verification=True) as file:
        for group in range(file.num_row_groups):
            file.read_row_group(group, use_threads=False)
    return time.thread_time() - start


def main(path: Path) -> None:
    clicks = Clicks(path)
    data, _, rows = clicks.write(LAYOUTS["default: zstd 1, groups of 32,768"])
    table = pq.read_table(io.BytesIO(data))
    measured: dict[str, list[tuple[float, float, int]]] = {
        name: [] for name in [*LAYOUTS, "pyarrow's writer, zstd 1"]
    }
    names = list(measured)
    for number in range(ROUNDS):
        for name in names[number:] + names[:number]:  # in turn, each place in the turn by another one
            data, seconds = clicks.write(LAYOUTS[name])[:2] if name in LAYOUTS else write_by_pyarrow(table)
            measured[name].append((seconds, read(data), len(data)))
    print(f"{rows:,} rows\n\n| setting | write, ns | read, ns | bytes |\n|---|---:|---:|---:|")
    for name, runs in measured.items():
        write_ns, read_ns, size = (statistics.median(run[index] for run in runs) / rows for index in range(3))
        print(f"| {name} | {write_ns * 1e9:.0f} | {read_ns * 1e9:.0f} | {size:.1f} |")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory(prefix="shard-layouts-") as folder:
            main(write_clicks(Path(folder) / "clicks.tsv", NUM_ROWS))
