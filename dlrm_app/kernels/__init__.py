"""Compiled code for CPUs. Importing this package imports nothing else."""
