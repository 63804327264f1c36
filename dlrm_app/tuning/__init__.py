"""dlrm-tune: a study of trainings, each with other values, by their AUC or log loss on val."""
