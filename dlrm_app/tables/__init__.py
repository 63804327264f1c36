"""Embedding tables: their specs, their optimizers, and which parameter is which table's."""
