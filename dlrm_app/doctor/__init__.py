"""Does this machine's torch, fbgemm, torchrec, driver and backends work, and if not, what to type.

Nothing here imports torch: whatever might crash is tried in a process of its own, by the scripts in ``probes``.
"""
