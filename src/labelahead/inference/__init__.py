"""Labels -> `PoolPosterior`: what a model predicts, given the labels, for every item of the pool.

A learner is fitted (`fit(labelled, labels, seed=...)`). The fitted model supplies the prior mean of
the posterior (`start`), the kernel by which labels change it (`kernel_arguments`), its outputs
(`outputs`) and its test accuracy (`accuracy`). Simulations, `Learner` and the labelling page use
nothing else of it.
"""
