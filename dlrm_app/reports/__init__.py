"""Pages, made from the files that jobs leave; no job knows them. No torch."""
