"""The work folder of a preprocessing, and the executors that run its units."""
