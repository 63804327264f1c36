"""Checkpoints that load under any number of ranks and any sharding plan, and are complete or absent."""
