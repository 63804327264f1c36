"""Tools around the main path: check, generate, plan, tune, doctor, and training day after day."""
