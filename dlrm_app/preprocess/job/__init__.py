"""dlrm-preprocess as a whole: plan, passes over the input, who does them, and the journal of what is done."""
