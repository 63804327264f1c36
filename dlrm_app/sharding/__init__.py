"""Places tables on ranks: cluster, constraints, cost, planner, plan files, sharded model."""
