"""Scores the rows of a dataset or of raw logs, a part at a time, so that an interrupted command can continue."""
