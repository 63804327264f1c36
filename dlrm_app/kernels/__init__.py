"""Everything compiled for CPUs. Importing this package imports nothing."""
