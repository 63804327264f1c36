"""Checkpoints that load on any number of ranks and with any sharding plan; each is either complete or absent."""
