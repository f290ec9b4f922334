"""Deep active learning by neural-tangent-kernel look-ahead.

    K = kernel(model, x)                                    # what the network's training can move
    post = prior(outputs, K).condition(labelled, targets)   # predictions after training, untrained
    scores = mlmoc(view(post, candidates))                  # what each further label would change

    learner = Learner(model, x); learner.query(10); learner.teach(positions, labels)
    result = run()                                          # a whole simulated campaign

Importing does nothing, not even importing torch: what is asked for is fetched then. Errors are in `labelahead.errors`.
"""

from importlib import import_module

TYPE_CHECKING = False  # as `typing` has it, which takes longer to import than all the rest of this
if TYPE_CHECKING:
    from typing import Any

    from labelahead.acquisition import ACQUISITIONS, changes, eer, emoc, flip, mlmoc, resolve, variance
    from labelahead.acquisition.select import Selection, best, greedy, sequential, top
    from labelahead.acquisition.view import View, view
    from labelahead.campaign.config import Budget, Campaign, Network, Source
    from labelahead.campaign.learner import Learner
    from labelahead.campaign.run import Result, resume, run
    from labelahead.data.pool import Pool
    from labelahead.errors import InputError, LabelaheadError
    from labelahead.inputs import Samples
    from labelahead.learners.exact import exact
    from labelahead.linear.flow import gradient_flow
    from labelahead.linear.leave_one_out import leave_one_out
    from labelahead.linear.lookahead import lookahead
    from labelahead.linear.posterior import Posterior, prior
    from labelahead.opening import load_model
    from labelahead.strategies import STRATEGIES
    from labelahead.strategies.asking import Asking, Picks, Strategy
    from labelahead.strategies.propose import Query, propose
    from labelahead.tangent import directional, features, infinite_kernel, inner_products, kernel, squared_norms
    from labelahead.train import Training

__version__ = "0.2.0"
__all__ = [
    "ACQUISITIONS",
    "STRATEGIES",
    "Asking",
    "Budget",
    "Campaign",
    "InputError",
    "LabelaheadError",
    "Learner",
    "Network",
    "Picks",
    "Pool",
    "Posterior",
    "Query",
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
    "acquisition": ("ACQUISITIONS", "changes", "eer", "emoc", "flip", "mlmoc", "resolve", "variance"),
    "acquisition.select": ("Selection", "best", "greedy", "sequential", "top"),
    "acquisition.view": ("View", "view"),
    "campaign.config": ("Budget", "Campaign", "Network", "Source"),
    "campaign.learner": ("Learner",),
    "campaign.run": ("Result", "resume", "run"),
    "data.pool": ("Pool",),
    "errors": ("InputError", "LabelaheadError"),
    "inputs": ("Samples",),
    "learners.exact": ("exact",),
    "linear.flow": ("gradient_flow",),
    "linear.leave_one_out": ("leave_one_out",),
    "linear.lookahead": ("lookahead",),
    "linear.posterior": ("Posterior", "prior"),
    "opening": ("load_model",),
    "strategies": ("STRATEGIES",),
    "strategies.asking": ("Asking", "Picks", "Strategy"),
    "strategies.propose": ("Query", "propose"),
    "tangent": ("directional", "features", "infinite_kernel", "inner_products", "kernel", "squared_norms"),
    "train": ("Training",),
}
_NAMES = {name: place for place, names in _PLACES.items() for name in names}
_PACKAGES = frozenset(
    (
        "acquisition",
        "campaign",
        "cli",
        "client",
        "compare",
        "data",
        "errors",
        "estimator",
        "inputs",
        "learners",
        "linear",
        "models",
        "opening",
        "scale",
        "strategies",
        "studies",
        "tangent",
        "train",
        "web",
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
