"""Ranks: how they are started, find each other, share cores, hear signals and exchange what all must know."""
