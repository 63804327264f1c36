"""Raw files → columns of raw values, and the lines that could not be used."""
