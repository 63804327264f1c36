"""The typed schema of every command's configuration, and the checks that precede work."""
