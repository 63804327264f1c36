"""report.html: what a run did on one self-contained page, rebuilt at any time from the run's folder alone."""
