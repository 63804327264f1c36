"""The basis of preprocessing: sources, their text in units of work, the journal, and the executors that run units."""
