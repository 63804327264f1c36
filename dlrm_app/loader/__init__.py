"""Parquet shards → batches: their order, reading, rows, KeyedJaggedTensor. Importing this package imports no torch."""
