"""What measures a run's steps: their parts, throughput, a trace, and advice on the bottleneck."""
