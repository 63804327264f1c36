"""A Parquet writer for datasets, with one entry point: ``ParquetWriter``."""

from dlrm_app.dataset.parquet.writer import ParquetWriter

__all__ = ["ParquetWriter"]
