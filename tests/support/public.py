"""What users import."""

# Where people import from: everything in `__all__` of these is public.
PUBLIC = (
    "labelahead",
    "labelahead.acquisition",
    "labelahead.server.client",
    "labelahead.simulation.comparison",
    "labelahead.data",
    "labelahead.errors",
    "labelahead.learner.sklearn",
    "labelahead.models",
    "labelahead.outofcore",
    "labelahead.strategies",
    "labelahead.ntk",
    "labelahead.models.training",
)
