"""The baselines of the look-ahead paper (LA, Figure 1), except for retraining.

One gradient step instead of training, the kernel of an infinitely wide network instead of the
network's own, a Gaussian process instead of the network, and look-ahead without the block formula.
Retraining is in `labelahead.strategies.retraining`.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labelahead.acquisition import Acquisition, mlmoc
from labelahead.gp.posterior import prior
from labelahead.models.networks import WideResNet
from labelahead.models.training import predict
from labelahead.ntk import infinite_kernel
from labelahead.strategies.base import Oracle, QueryBatch, Strategy
from labelahead.strategies.context import QueryContext, make_scoring_strategy
from labelahead.strategies.lookahead import LOOK_AHEAD_MODES, LOOK_AHEAD_PAPER

__all__ = ["BASELINES", "HIDDEN_LAYERS", "matching_infinite_kernel", "one_step"]

CANDIDATES_PER_CHUNK = 64
HIDDEN_LAYERS = 3  # of the infinitely wide network
# Images are reduced to so many pixels a side for the convolutional kernel, whose cost per pair grows
# with the fourth power.
MAX_IMAGE_SIDE = 7


def one_step(context: QueryContext, rng: torch.Generator) -> Tensor:
    """Score candidates x' by the change after one gradient step on x' alone, (m,).

    The score is Σₓ ‖Θ(x,x') (y' − f(x'))‖₂ over x ≠ x' with y' = argmax f(x'). The step θ ← θ − η
    ∇ℓ(x', y') moves the outputs by J(x) J(x')ᵀ η (y' − f(x')) + O(η²), and η scales all scores
    alike. With the full kernel this is the step to first order, and exact where the outputs are
    linear in the weights; a scalar kernel approximates it as in mlmoc.
    """
    start = prior(
        context.start, **context.kernel_arguments, noise=context.noise
    )  # without labels the covariance is Θ
    first = len(context.labelled)
    candidate_rows = torch.arange(
        first, first + len(context.candidates), device=start.outputs.device
    )
    evaluation_rows = (
        candidate_rows
        if context.query_config.evaluation is None
        else candidate_rows[: context.query_config.evaluation]
    )
    guess = F.one_hot(start.outputs[candidate_rows].argmax(1), start.classes).to(start.outputs)
    residual, b = guess - start.outputs[candidate_rows], start.width
    scores = []
    for at, r in zip(
        torch.split(candidate_rows, CANDIDATES_PER_CHUNK),
        torch.split(residual, CANDIDATES_PER_CHUNK),
        strict=True,
    ):
        theta = start.covariance_block(evaluation_rows, at).double()
        size = (
            theta.abs().T * r.norm(dim=1)[:, None]
            if b == 1
            else torch.einsum("xaqb,qb->qxa", theta, r).norm(dim=2)
        )
        scores.append(size.masked_fill(at[:, None] == evaluation_rows[None, :], 0.0).sum(1))
    return torch.cat(scores)


def matching_infinite_kernel(
    model: nn.Module | None, x: Tensor, x2: Tensor | None = None
) -> Tensor:
    """Compute the kernel (n, m) of an infinitely wide network like this one: convolutional for images,
    else dense.

    The convolutional one has three convolutions (of a WideResNet the stem and its first block) and
    averages over the image, which is reduced to at most 7 pixels a side. BatchNorm is ignored.
    """
    a, b = (None if t is None else t if t.is_floating_point() else t.float() for t in (x, x2))
    assert a is not None
    convolutional = model is not None and any(isinstance(m, nn.Conv2d) for m in model.modules())
    if not convolutional or a.ndim != 4:
        return infinite_kernel(a, b, depth=HIDDEN_LAYERS)
    small = (min(MAX_IMAGE_SIDE, a.shape[2]), min(MAX_IMAGE_SIDE, a.shape[3]))
    b = None if b is None else F.adaptive_avg_pool2d(b, small)
    skips = (2,) if isinstance(model, WideResNet) else ()
    return infinite_kernel(
        F.adaptive_avg_pool2d(a, small), b, network="conv", depth=HIDDEN_LAYERS, skips=skips
    )


def _zero_outputs(context: QueryContext) -> Tensor:
    """Return zeros (L + m, C); the network only determines the number of classes."""
    one = predict(context.model, context.inputs[context.points[:1]])
    return one.new_zeros(len(context.points), one.shape[1])


def _infinite_width_lookahead(
    start: Callable[[QueryContext], Tensor], acquisition: str | Acquisition
) -> Callable[..., QueryBatch]:
    """Make a look-ahead function, in any mode, with the kernel of an infinitely wide ReLU network.

    Look-ahead does not depend on the scale of the kernel.

    Args:
        start: Computes the prior mean (L + m, C).
        acquisition: A name or a function.
    """

    def select_batch(
        context: QueryContext, q: int, rng: torch.Generator, mode: str, oracle: Oracle | None
    ) -> QueryBatch:
        x, prior_mean = context.fitted.rows(context.points), start(context)
        with context.time_stage("kernel"):
            context.require_memory(len(context.points), prior_mean.element_size())
            kernel = matching_infinite_kernel(context.model, x)
        pool_posterior = context.condition_posterior(prior_mean, {"kernel": kernel})
        with context.time_stage("score"):
            return QueryBatch(*pool_posterior.select_batch(acquisition, q, rng, mode, oracle))

    return select_batch


BASELINES = (
    Strategy(
        "one-step",
        "studies: one gradient step on the item instead of training; otherwise as mlmoc",
        "Käding, Rodner, Freytag & Denzler 2016, Active and Continuous Exploration with Deep "
        "Neural Networks and Expected Model Output Changes",
        make_scoring_strategy(one_step, lambda context: (context.start, context.kernel_arguments)),
    ),
    Strategy(
        "infinite-ntk",
        "studies: mlmoc with the kernel of an infinitely wide network, which ignores training",
        "Borsos, Tagliasacchi & Krause 2021, Semi-supervised Batch Active Learning via Bilevel "
        "Optimization; as used in " + LOOK_AHEAD_PAPER,
        _infinite_width_lookahead(lambda context: context.start, "mlmoc"),
        LOOK_AHEAD_MODES,
    ),
    Strategy(
        "gp",
        "studies: a Gaussian process with that kernel looks ahead for itself, without the network",
        "Käding, Rodner, Freytag, Mothes, Barz & Denzler 2018, Active Learning for Regression "
        "Tasks with Expected Model Output Changes",
        # f_L and f_L₊ of (LA-13) are both the process's own means
        _infinite_width_lookahead(_zero_outputs, partial(mlmoc, baseline="linearised")),
        LOOK_AHEAD_MODES,
    ),
    Strategy(
        "ntk-solve",
        "studies: queries the same items as mlmoc in mode top, by one linear system per item: slower",
        LOOK_AHEAD_PAPER,
        make_scoring_strategy(
            lambda context, rng: mlmoc(context.view, rng, method="solve"),
            lambda context: context.view,
        ),
    ),
)
