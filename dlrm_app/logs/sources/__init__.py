"""The places of raw logs: files, folders, tables of lakes and object stores, read in units of work."""
