"""A dataset folder of Parquet shards → batches. Importing this package imports no torch."""
