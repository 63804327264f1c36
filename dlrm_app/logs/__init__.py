"""Raw click logs: their description, and their text and Arrow tables → columns of raw values. No torch."""
