"""The ground of preprocessing: sources, units of work, their journal, and the executors that run them."""
