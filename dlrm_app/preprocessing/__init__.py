"""Raw click logs → a dataset folder of Parquet shards. Nothing here imports torch."""
