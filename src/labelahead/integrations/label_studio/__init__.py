"""Label Studio as an active learner: the labelling page's session behind its interface."""
