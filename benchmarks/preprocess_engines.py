"""What preprocess.py measures: each engine reads the Criteo files ``inputs`` and writes into ``output``.

The job is the same: log1p, hexadecimal ids hashed to NUM_EMBEDDINGS, Parquet by zstd.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dlrm_app.config.compose import compose_config
from dlrm_app.config.datasets import PreprocessConfig

NUM_EMBEDDINGS = 100_000
DENSE = [f"int_{number}" for number in range(13)]
SPARSE = [f"cat_{number}" for number in range(26)]


Job = Callable[[], object]


def preprocess_overrides(inputs: Sequence[Path], output: Path, *, chosen: bool = False) -> list[str]:
    """The job as dlrm-preprocess is told it; ``chosen``: with nothing typed, by a look at the rows."""
    names = ",".join(f'"{path}"' for path in inputs)
    overrides = ["dataset=criteo_kaggle", f"input.train=[{names}]", f"output={output}"]
    dense = ["dense.transform=log1p", "dense.bucket_columns=null", "dense.target_columns=null"]
    return overrides if chosen else [*overrides, f"encoding.num_embeddings={NUM_EMBEDDINGS}", *dense]


def parquet_of(path: Path) -> Path:
    """The Parquet file beside a Criteo file, with the same rows: integers, and strings of hex digits."""
    parquet = path.with_suffix(".parquet")
    if not parquet.exists():
        _frame([path]).sink_parquet(parquet)
    return parquet


def from_parquet(inputs: Sequence[Path], output: Path) -> Job:
    return this_project([parquet_of(path) for path in inputs], output)


def this_project(inputs: Sequence[Path], output: Path, *, chosen: bool = False) -> Job:
    from dlrm_app.preprocess.preprocess import preprocess

    overrides = preprocess_overrides(inputs, output, chosen=chosen)
    return partial(preprocess, compose_config("preprocess", PreprocessConfig, overrides))


def _frame(inputs: Sequence[Path]) -> Any:
    """polars' lazy frame of Criteo files."""
    import polars as pl

    schema = {"label": pl.UInt8, **dict.fromkeys(DENSE, pl.Int64), **dict.fromkeys(SPARSE, pl.String)}
    return pl.scan_csv(list(inputs), separator="\t", has_header=False, schema=schema, quote_char=None)


def polars(inputs: Sequence[Path], output: Path, is_parquet: bool = False) -> None:
    import polars as pl

    dense = [
        pl.col(name).fill_null(0).clip(lower_bound=0).cast(pl.Float64).log1p().cast(pl.Float32)
        for name in DENSE
    ]
    numbers = [pl.col(name).str.to_integer(base=16, dtype=pl.UInt32) for name in SPARSE]
    sparse = [
        pl.when(number.is_null()).then(0).otherwise(number.hash() % (NUM_EMBEDDINGS - 1) + 1).cast(pl.Int32)
        for number in numbers
    ]
    sparse = [column.alias(name) for column, name in zip(sparse, SPARSE, strict=True)]
    frame = pl.scan_parquet([parquet_of(path) for path in inputs]) if is_parquet else _frame(inputs)
    frame.select("label", *dense, *sparse).sink_parquet(
        output / "train.parquet", compression="zstd", compression_level=1
    )


def duckdb(inputs: Sequence[Path], output: Path) -> None:
    import duckdb as db

    types = {"label": "UTINYINT", **dict.fromkeys(DENSE, "BIGINT"), **dict.fromkeys(SPARSE, "VARCHAR")}
    columns = ", ".join(f"'{name}': '{kind}'" for name, kind in types.items())
    dense = [f"CAST(ln(greatest(coalesce({name}, 0), 0) + 1.0) AS FLOAT) AS {name}" for name in DENSE]
    sparse = [
        f"CAST(CASE WHEN {name} IS NULL THEN 0 ELSE 1 + hash(CAST('0x' || {name} AS UINTEGER)) "
        f"% {NUM_EMBEDDINGS - 1} END AS INTEGER) AS {name}"
        for name in SPARSE
    ]
    files = ", ".join(f"'{path}'" for path in inputs)
    db.sql(
        f"COPY (SELECT label, {', '.join(dense + sparse)} FROM read_csv([{files}], delim='\t', header=false, "
        f"quote='', escape='', auto_detect=false, columns={{{columns}}})) TO '{output}/train.parquet' "
        "(FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1)"
    )


@dataclass(frozen=True)
class Engine:
    """``prepare`` makes the job."""

    title: str
    prepare: Callable[[Sequence[Path], Path], Job]


ENGINES = {
    "ours": Engine("this project", this_project),
    "ours-auto": Engine("this project, nothing chosen", partial(this_project, chosen=True)),
    "ours-parquet": Engine("this project, from Parquet", from_parquet),
    "polars": Engine("polars", partial(partial, polars)),
    "polars-parquet": Engine("polars, from Parquet", partial(partial, polars, is_parquet=True)),
    "duckdb": Engine("duckdb", partial(partial, duckdb)),
}
