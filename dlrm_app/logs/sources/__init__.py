"""Where raw logs lie: files, folders, tables of lakes and object stores, read in units of work."""
