"""Layers that architectures are made of, fast on CPU."""
