"""Embedding tables as they are served."""
