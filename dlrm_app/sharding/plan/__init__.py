"""A sharding plan: what it is estimated to cost, as a file, as text and as a page."""
