"""Deep active learning by neural-tangent-kernel look-ahead.

    K = kernel(model, x)                                    # what the network's training can move
    post = prior(outputs, K).condition(labelled, targets)   # predictions after training, untrained
    scores = mlmoc(view(post, candidates))                  # what each further label would change

    learner = Learner(model, x); learner.query(10); learner.teach(positions, labels)
    result = run()                                          # a whole simulated campaign

Importing does nothing; errors are in `labelahead.errors`.
"""

from labelahead.acquisition import ACQUISITIONS, View, eer, emoc, flip, mlmoc, variance, view
from labelahead.campaign import Result, resume, run
from labelahead.config import Budget, Campaign, Network, Source
from labelahead.errors import InputError, LabelaheadError
from labelahead.flow import gradient_flow
from labelahead.learner import Learner
from labelahead.lookahead import lookahead
from labelahead.pool import Pool
from labelahead.posterior import Posterior, prior
from labelahead.propose import Query, propose
from labelahead.residuals import leave_one_out
from labelahead.select import Selection, best, greedy, sequential, top
from labelahead.situation import Asking
from labelahead.strategy import STRATEGIES
from labelahead.tangent import (
    directional,
    features,
    infinite_kernel,
    inner_products,
    kernel,
    squared_norms,
)
from labelahead.train import Training

__version__ = "0.1.0"
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
    "Pool",
    "Posterior",
    "Query",
    "Result",
    "Selection",
    "Source",
    "Training",
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
    "infinite_kernel",
    "inner_products",
    "kernel",
    "leave_one_out",
    "lookahead",
    "mlmoc",
    "prior",
    "propose",
    "resume",
    "run",
    "sequential",
    "squared_norms",
    "top",
    "variance",
    "view",
]
