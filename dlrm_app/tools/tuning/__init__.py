"""dlrm-tune: a study of trainings with different values, compared by AUC or log loss on val."""
