"""Deep active learning by neural-tangent-kernel look-ahead.

    K = kernel(model, x)                                    # what the network's training can move
    post = prior(outputs, K).condition(labelled, targets)   # predictions after training, untrained
    scores = mlmoc(view(post, candidates))                  # what each further label would change

Importing does nothing; errors are in `labelahead.errors`.
"""

from labelahead.acquisition import ACQUISITIONS, View, eer, emoc, flip, mlmoc, variance, view
from labelahead.flow import gradient_flow
from labelahead.lookahead import lookahead
from labelahead.posterior import Posterior, prior
from labelahead.residuals import leave_one_out
from labelahead.select import Selection, best, greedy, sequential, top
from labelahead.tangent import directional, features, inner_products, kernel, squared_norms

__version__ = "0.1.0"
__all__ = [
    "ACQUISITIONS",
    "Posterior",
    "Selection",
    "View",
    "__version__",
    "best",
    "directional",
    "eer",
    "emoc",
    "features",
    "flip",
    "gradient_flow",
    "greedy",
    "inner_products",
    "kernel",
    "leave_one_out",
    "lookahead",
    "mlmoc",
    "prior",
    "sequential",
    "squared_norms",
    "top",
    "variance",
    "view",
]
