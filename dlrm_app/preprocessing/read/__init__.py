"""Raw files → columns of raw values, and rejected lines."""
