"""Encoded rows → Parquet shards, in the order of the shuffle."""
