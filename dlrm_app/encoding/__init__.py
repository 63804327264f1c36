"""Encodes raw values as ids and dense values, according to the manifest. No torch."""
