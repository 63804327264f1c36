"""dataset.html: what a dataset holds, on one page."""
