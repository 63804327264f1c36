"""Passes over the units: counting lines and values, adding up counts, encoding, shuffling."""
