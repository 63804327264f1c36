"""Checks whether this machine's torch, fbgemm, torchrec, driver and backends work; says what to type if not.

Nothing here imports torch: whatever might crash is tried in a process of its own, by the scripts in ``probes``.
"""
