"""How fast a run goes, what its steps' time goes into, and what would help."""
