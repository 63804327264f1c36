"""Places tables on ranks: cluster, constraints, cost, planner, plan files, the sharded model."""
