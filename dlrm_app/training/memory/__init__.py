"""What a run needs of memory beside its tables: estimated, and measured before the first epoch."""
