"""dlrm-report of several runs: their curves, configurations and speeds on one page, and whether their AUCs differ."""
