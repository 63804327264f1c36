"""Passes over the units: counting and studying what must be known first, encoding, adding up."""
