"""A small simulated campaign."""

from dataclasses import replace

from labelahead.learner.config import Budget, Campaign, Network

SMALL = Campaign(
    model=Network("mlp", 16),
    training={"steps": 60, "rate": 0.02},
    budget=Budget(initial=5, labels=17, retrain_every=4),
    threads=1,
)


def make_confirming_campaign(missed):
    budget = Budget(
        initial=5, labels=17, retrain_every=4, confirm=8, confirm_cost=0.25, missed=missed
    )
    return replace(SMALL, training={"steps": 15}, budget=budget)
