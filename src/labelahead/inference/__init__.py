"""Labels -> Belief: what a learner makes of the labels, at every item in play.

A learner learns (`fit(labelled, labels, seed=...)`), and what it learnt says where a belief
begins (`start`), by which kernel labels move it (`kernel_arguments`), what it would answer (`outputs`), and
how often that is right (`accuracy`). Nothing else is asked of it by campaigns, `Learner` or the
page.
"""
