"""What a run needs of memory beside its tables, estimated."""
