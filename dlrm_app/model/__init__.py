"""Architectures and their interactions, built on the meta device."""
