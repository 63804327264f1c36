"""How long a training step takes on a described machine: its work by part, and the rates at which that is done."""
