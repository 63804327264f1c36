"""Looking at a finished dataset: is it whole, do its splits overlap, what is in it."""
