"""BALD and BatchBALD: disagreement between plausible networks."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from labelahead.acquisition.probability import entropy, probabilities
from labelahead.batching import Samples
from labelahead.errors import ModelError
from labelahead.models.training import initialise_model, predict, train
from labelahead.models.training.forward import eval_mode, run_forward
from labelahead.strategies.base import Oracle, QueryBatch, Strategy
from labelahead.strategies.context import QueryContext, make_scoring_strategy
from labelahead.strategies.diversity import lazy_argmax

__all__ = ["BAYESIAN", "bald", "batch_bald"]

DROPOUT_SAMPLES = 20
ENSEMBLE_MEMBERS = 5  # used if the network has no dropout
MAX_LABEL_CONFIGURATIONS = 2000  # joint labels of a batch; beyond, they are sampled
NUMBERS_PER_BLOCK = 1 << 18  # fits into the CPU cache


def bald(p: Tensor) -> Tensor:
    """Return the mutual information of label and network, H(mean p) − mean H(p), (m,) for p (m, T, C)."""
    return entropy(p.mean(1)) - entropy(p).mean(1)


def batch_bald(
    p: Tensor, q: int, rng: torch.Generator, *, max_configurations: int = MAX_LABEL_CONFIGURATIONS
) -> tuple[Tensor, Tensor]:
    """Select q candidates greedily by the mutual information of their joint labels and the network.

    Args:
        p: (m, T, C) probabilities by T networks.
        q: Batch size.
        rng: Draws configurations.
        max_configurations: The joint entropy is exact up to so many joint labels of the batch;
            beyond, so many are sampled.

    Returns:
        Candidate indices (q,) and the mutual information after each, (q,).
    """
    m, T, C = p.shape
    conditional_entropy = entropy(p).mean(1)  # H(y | network)
    joint = p.new_ones(1, T)  # probability of each configuration under each network
    weight = p.new_ones(1)  # 1 while exact; else 1 / (drawn × its probability)
    # Given the network, labels are independent, so gains only decrease as the batch grows. An old
    # gain is an upper bound, and few candidates must be evaluated again.
    bound = p.new_full((m,), torch.inf)
    selected: list[int] = []
    scores: list[float] = []
    for _ in range(q):
        gain = partial(_information_gain, joint, weight, p, conditional_entropy)
        at = lazy_argmax(bound, gain, max(16, NUMBERS_PER_BLOCK // (len(joint) * C)))
        scores.append(float(bound[at]) + (scores[-1] if scores else 0.0))
        selected.append(at)
        bound[at] = -torch.inf
        joint = (joint[:, None] * p[at].T[None]).reshape(-1, T)
        weight = weight.repeat_interleave(C)
        if len(joint) > max_configurations:
            mass = joint.mean(1) * weight
            drawn = torch.multinomial(mass, max_configurations, replacement=True, generator=rng)
            joint = joint[drawn]
            weight = 1 / (max_configurations * joint.mean(1))
    return torch.tensor(selected), torch.tensor(scores, dtype=torch.float64)


def _information_gain(
    joint: Tensor, weight: Tensor, p: Tensor, conditional_entropy: Tensor, rows: Tensor
) -> Tensor:
    """Return H(y | batch) − H(y | network), (r,), the information that some candidates add to the
    batch.
    """
    T, C = p.shape[1:]
    both = joint @ p[rows].permute(1, 0, 2).reshape(T, -1) / T
    information = (weight @ _plog(both)).view(len(rows), C).sum(1)
    return weight @ _plog(joint.mean(1)) - information - conditional_entropy[rows]


def _plog(p: Tensor) -> Tensor:
    """Return p log p, and 0 at 0."""
    return p.clamp_min(torch.finfo(p.dtype).tiny).log_().mul_(p)


def sample_networks(context: QueryContext, rng: torch.Generator) -> Tensor:
    """Return probabilities (m, T, C) of the candidates by T plausible networks.

    By dropout if the network has any, else by an ensemble that is trained in the same way.
    """
    drops = [
        m
        for m in context.model.modules()
        if isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0
    ]
    seed = int(torch.randint(2**31, (1,), generator=rng))
    x = context.fitted.load_inputs(context.candidates)
    if drops:
        with eval_mode(context.model), torch.random.fork_rng():
            torch.manual_seed(seed)
            outputs = [
                _predict_with_dropout(context.model, drops, x) for _ in range(DROPOUT_SAMPLES)
            ]
    elif context.fresh is not None and context.training is not None:
        outputs = [predict(_train_member(context, seed + i), x) for i in range(ENSEMBLE_MEMBERS)]
    else:
        raise ModelError(
            "bald needs several plausible networks, but this one has no dropout and no recipe to "
            "train more: add nn.Dropout (`--set model.dropout=0.2`), or pass `fresh` and `training`"
        )
    method = "softmax" if context.loss == "cross-entropy" else "simplex"
    return probabilities(torch.stack(outputs, 1).cpu().double(), method)


def _predict_with_dropout(
    model: nn.Module, drops: Sequence[nn.Module], x: Tensor | Samples
) -> Tensor:
    """Run one forward pass with dropout; `predict` would disable it."""
    for module in drops:
        module.training = True
    with torch.no_grad():
        return torch.cat(
            [run_forward(model, x[start : start + 512]) for start in range(0, len(x), 512)]
        )


def _train_member(context: QueryContext, seed: int) -> nn.Module:
    assert context.fresh is not None
    assert context.training is not None
    model = initialise_model(context.fresh, None, context.training, seed=seed)
    device = next(context.model.parameters()).device
    classes = context.candidate_outputs.shape[1]
    model.to(device)
    if len(context.labelled):
        train(
            model,
            context.inputs[context.labelled],
            context.labels,
            classes,
            context.training,
            seed=seed,
        )
    return model


def _batch_bald(
    context: QueryContext, q: int, rng: torch.Generator, mode: str, oracle: Oracle | None
) -> QueryBatch:
    with context.time_stage("samples"):
        p = sample_networks(context, rng)
    with context.time_stage("score"):
        order, scores = batch_bald(p, q, rng)
    return QueryBatch(context.candidates[order], scores)


BAYESIAN = (
    Strategy(
        "bald",
        "a network with dropout (else an ensemble is trained): where plausible networks disagree",
        "Houlsby, Huszár, Ghahramani & Lengyel 2011; Gal, Islam & Ghahramani 2017",
        make_scoring_strategy(lambda context, rng: bald(sample_networks(context, rng))),
        needs_network=True,
    ),
    Strategy(
        "batchbald",
        "as bald, for batches: counts the joint information of the labels; slow for large batches",
        "Kirsch, van Amersfoort & Gal 2019, BatchBALD",
        _batch_bald,
        needs_network=True,
    ),
)
