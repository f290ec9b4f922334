"""The public modules."""

# Everything in `__all__` of these modules is public.
PUBLIC = (
    "labelahead",
    "labelahead.acquisition",
    "labelahead.attribution",
    "labelahead.server.client",
    "labelahead.simulation.comparison",
    "labelahead.data",
    "labelahead.errors",
    "labelahead.learner.sklearn",
    "labelahead.models",
    "labelahead.outofcore",
    "labelahead.strategies",
    "labelahead.tasks",
    "labelahead.ntk",
    "labelahead.models.training",
)
