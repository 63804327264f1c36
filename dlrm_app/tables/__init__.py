"""Embedding tables: their specs, their optimizers, and their parameters' names."""
