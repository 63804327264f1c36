"""One file a command: compose, validate, call the job. No logic."""
