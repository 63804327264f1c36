"""Ranks: starting them, joining them, sharing cores, handling signals, and messages between all of them."""
