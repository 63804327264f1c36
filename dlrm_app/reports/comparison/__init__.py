"""Several runs side by side: curves, configurations, speeds, and whether their AUCs differ."""
