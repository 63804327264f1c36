"""A Parquet writer for datasets, with one entry point: ``ParquetWriter``."""

from dlrm_app.preprocess.write.parquet.writer import ParquetWriter

__all__ = ["ParquetWriter"]
