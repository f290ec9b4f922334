"""Deep active learning with neural-tangent-kernel look-ahead.

    learner = Learner(exact(features, classes), features)   # or any torch network and its inputs
    items = learner.query(10)                               # the items to label next
    learner.teach(items, labels)

    K = kernel(model, x)                                    # the network's tangent kernel
    post = prior(outputs, K).condition(labelled, targets)   # predictions after training, untrained
    scores = acquisition.flip(acquisition.view(post, candidates))

    result = run()                                          # simulate a whole labelling campaign

Importing this package imports nothing else, not even torch: names are loaded when they are used.
Everything else is in the packages: `acquisition`, `data`, `gp`, `models`, `ntk`, `strategies`, ...
"""

from importlib import import_module

TYPE_CHECKING = False  # importing `typing` would take longer than the rest of this module
if TYPE_CHECKING:
    from typing import Any

    from labelahead.acquisition import ACQUISITIONS
    from labelahead.batching import Samples
    from labelahead.data.pool import Pool
    from labelahead.errors import InputError, LabelaheadError
    from labelahead.gp.leave_one_out import leave_one_out
    from labelahead.gp.lookahead import lookahead
    from labelahead.gp.posterior import Posterior, prior
    from labelahead.inference.exact_model import exact
    from labelahead.learner.config import Budget, Campaign, Network, Source
    from labelahead.learner.language_model import LanguageModelGuesser
    from labelahead.learner.learner import Learner
    from labelahead.model_loading import load_model
    from labelahead.models.training import Training
    from labelahead.ntk import features, infinite_kernel, kernel
    from labelahead.simulation.run import resume, run
    from labelahead.strategies import STRATEGIES
    from labelahead.strategies.base import QueryConfig
    from labelahead.strategies.query import propose

__version__ = "0.2.0"
__all__ = [
    "ACQUISITIONS",
    "STRATEGIES",
    "Budget",
    "Campaign",
    "InputError",
    "LabelaheadError",
    "LanguageModelGuesser",
    "Learner",
    "Network",
    "Pool",
    "Posterior",
    "QueryConfig",
    "Samples",
    "Source",
    "Training",
    "__version__",
    "exact",
    "features",
    "infinite_kernel",
    "kernel",
    "leave_one_out",
    "load_model",
    "lookahead",
    "prior",
    "propose",
    "resume",
    "run",
]

# The module of each name; the imports under TYPE_CHECKING are for type checkers.
_NAMES_BY_MODULE = {
    "acquisition": ("ACQUISITIONS",),
    "batching": ("Samples",),
    "data.pool": ("Pool",),
    "errors": ("InputError", "LabelaheadError"),
    "gp.leave_one_out": ("leave_one_out",),
    "gp.lookahead": ("lookahead",),
    "gp.posterior": ("Posterior", "prior"),
    "inference.exact_model": ("exact",),
    "learner.config": ("Budget", "Campaign", "Network", "Source"),
    "learner.language_model": ("LanguageModelGuesser",),
    "learner.learner": ("Learner",),
    "model_loading": ("load_model",),
    "models.training": ("Training",),
    "ntk": ("features", "infinite_kernel", "kernel"),
    "simulation.run": ("resume", "run"),
    "strategies": ("STRATEGIES",),
    "strategies.base": ("QueryConfig",),
    "strategies.query": ("propose",),
}
_MODULE_BY_NAME = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names}
_PACKAGES = frozenset(
    (
        "acquisition",
        "attribution",
        "batching",
        "cli",
        "data",
        "devices",
        "errors",
        "gp",
        "inference",
        "integrations",
        "learner",
        "model_loading",
        "models",
        "ntk",
        "outofcore",
        "server",
        "simulation",
        "strategies",
        "tasks",
    )
)


def __getattr__(name: str) -> "Any":
    if name in _MODULE_BY_NAME:
        value = getattr(import_module(f"labelahead.{_MODULE_BY_NAME[name]}"), name)
        globals()[name] = value
        return value
    if name in _PACKAGES:
        return import_module(f"labelahead.{name}")
    raise AttributeError(f"module 'labelahead' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
