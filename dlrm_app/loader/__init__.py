"""Parquet shards → batches: their order, reading, rows, KeyedJaggedTensor.

Importing this package does not import torch.
"""
