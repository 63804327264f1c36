"""The recipe that dlrm-train takes where nothing is chosen."""
