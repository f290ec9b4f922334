"""Deep active learning by neural-tangent-kernel look-ahead.

    K = kernel(model, x)                                    # what the network's training can move
    post = prior(outputs, K).condition(labelled, targets)   # predictions after training, untrained
    scores = mlmoc(view(post, candidates))                  # what each further label would change

    learner = Learner(model, x); learner.query(10); learner.teach(positions, labels)
    result = run()                                          # a whole simulated campaign

Importing does nothing, not even importing torch: what is asked for is fetched then. Errors are in
`labelahead.errors`.
"""

from importlib import import_module

TYPE_CHECKING = False  # as `typing` has it, which takes longer to import than all the rest of this
if TYPE_CHECKING:
    from typing import Any

    from labelahead.acquisition import (
        ACQUISITIONS,
        changes,
        eer,
        emoc,
        flip,
        mlmoc,
        resolve,
        variance,
    )
    from labelahead.acquisition.batch import Selection, best, greedy, sequential, top
    from labelahead.acquisition.view import View, view
    from labelahead.batching import Samples
    from labelahead.data.pool import Pool
    from labelahead.errors import InputError, LabelaheadError
    from labelahead.gp.flow import gradient_flow
    from labelahead.gp.leave_one_out import leave_one_out
    from labelahead.gp.lookahead import lookahead
    from labelahead.gp.posterior import Posterior, prior
    from labelahead.inference.exact import exact
    from labelahead.learner.config import Budget, Campaign, Network, Source
    from labelahead.learner.learner import Learner
    from labelahead.model_loading import load_model
    from labelahead.models.training import Training
    from labelahead.ntk import (
        directional,
        features,
        infinite_kernel,
        inner_products,
        kernel,
        squared_norms,
    )
    from labelahead.simulation.run import Result, resume, run
    from labelahead.strategies import STRATEGIES
    from labelahead.strategies.base import QueryBatch, QueryConfig, Strategy
    from labelahead.strategies.query import Query, propose

__version__ = "0.2.0"
__all__ = [
    "ACQUISITIONS",
    "STRATEGIES",
    "Budget",
    "Campaign",
    "InputError",
    "LabelaheadError",
    "Learner",
    "Network",
    "Pool",
    "Posterior",
    "Query",
    "QueryBatch",
    "QueryConfig",
    "Result",
    "Samples",
    "Selection",
    "Source",
    "Strategy",
    "Training",
    "View",
    "__version__",
    "best",
    "changes",
    "directional",
    "eer",
    "emoc",
    "exact",
    "features",
    "flip",
    "gradient_flow",
    "greedy",
    "infinite_kernel",
    "inner_products",
    "kernel",
    "leave_one_out",
    "load_model",
    "lookahead",
    "mlmoc",
    "prior",
    "propose",
    "resolve",
    "resume",
    "run",
    "sequential",
    "squared_norms",
    "top",
    "variance",
    "view",
]

# Where each name is; `if TYPE_CHECKING` above says the same to whoever reads types.
_PLACES = {
    "acquisition": (
        "ACQUISITIONS",
        "changes",
        "eer",
        "emoc",
        "flip",
        "mlmoc",
        "resolve",
        "variance",
    ),
    "acquisition.batch": ("Selection", "best", "greedy", "sequential", "top"),
    "acquisition.view": ("View", "view"),
    "learner.config": ("Budget", "Campaign", "Network", "Source"),
    "learner.learner": ("Learner",),
    "simulation.run": ("Result", "resume", "run"),
    "data.pool": ("Pool",),
    "errors": ("InputError", "LabelaheadError"),
    "batching": ("Samples",),
    "inference.exact": ("exact",),
    "gp.flow": ("gradient_flow",),
    "gp.leave_one_out": ("leave_one_out",),
    "gp.lookahead": ("lookahead",),
    "gp.posterior": ("Posterior", "prior"),
    "model_loading": ("load_model",),
    "strategies": ("STRATEGIES",),
    "strategies.base": ("QueryBatch", "QueryConfig", "Strategy"),
    "strategies.query": ("Query", "propose"),
    "ntk": (
        "directional",
        "features",
        "infinite_kernel",
        "inner_products",
        "kernel",
        "squared_norms",
    ),
    "models.training": ("Training",),
}
_NAMES = {name: place for place, names in _PLACES.items() for name in names}
_PACKAGES = frozenset(
    (
        "acquisition",
        "batching",
        "cli",
        "data",
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
    )
)


def __getattr__(name: str) -> "Any":
    if name in _NAMES:
        value = getattr(import_module(f"labelahead.{_NAMES[name]}"), name)
        globals()[name] = value
        return value
    if name in _PACKAGES:
        return import_module(f"labelahead.{name}")
    raise AttributeError(f"module 'labelahead' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
