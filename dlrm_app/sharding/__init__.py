"""Where every table lives: topology, planner, plans on disk."""
