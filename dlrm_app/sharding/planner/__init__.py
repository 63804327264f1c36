"""The search for a sharding plan."""
