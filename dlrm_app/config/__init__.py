"""The typed schema of every command's configuration, and the checks before work."""
