"""The library: functions (one for each command), the scorer, and the table of commands that cli/ starts too."""
