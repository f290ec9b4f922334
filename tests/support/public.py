"""What users import."""

# Where people import from: everything in `__all__` of these is public.
PUBLIC = (
    "labelahead",
    "labelahead.acquisition",
    "labelahead.client",
    "labelahead.compare",
    "labelahead.data",
    "labelahead.errors",
    "labelahead.estimator",
    "labelahead.models",
    "labelahead.scale",
    "labelahead.strategies",
    "labelahead.studies",
    "labelahead.tangent",
    "labelahead.train",
)
