"""Checks if this machine's torch, fbgemm, torchrec, driver and backends work, and prints cures if not.

Nothing here imports torch: everything that might crash is tried in a separate process, by the scripts in ``probes``.
"""
