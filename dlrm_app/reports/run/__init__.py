"""report.html: one run on one page, rebuilt at any time from the run's folder."""
