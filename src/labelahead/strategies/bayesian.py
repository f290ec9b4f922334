"""Disagreement between plausible networks: BALD and BatchBALD."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from labelahead.acquisition.probability import entropy, probabilities
from labelahead.batching import Samples
from labelahead.errors import ModelError
from labelahead.models.training import fresh_start, predict, train
from labelahead.models.training.forward import eval_mode, forward
from labelahead.strategies.base import Ask, QueryBatch, Strategy
from labelahead.strategies.context import QueryContext, scored
from labelahead.strategies.diversity import lazy_argmax

__all__ = ["BAYESIAN", "bald", "batch_bald"]

SAMPLES = 20  # networks drawn by dropout
MEMBERS = 5  # networks trained, where there is no dropout
CONFIGURATIONS = 2000  # joint labels of a batch that are followed
BLOCK = 1 << 18  # numbers at once, to stay in the cache


def bald(p: Tensor) -> Tensor:
    """(m,) mutual information of label and network: H(mean p) − mean H(p), for p (m, T, C)."""
    return entropy(p.mean(1)) - entropy(p).mean(1)


def batch_bald(
    p: Tensor, q: int, rng: torch.Generator, *, most: int = CONFIGURATIONS
) -> tuple[Tensor, Tensor]:
    """q candidates whose labels together say most of the network, chosen one by one, p (m, T, C).

    The joint entropy is exact while the labels of the batch so far have at most `most`
    configurations; beyond, so many are drawn from their own distribution.
    """
    m, T, C = p.shape
    doubt = entropy(p).mean(1)  # H(y | network)
    joint = p.new_ones(1, T)  # probability of each configuration under each network
    weight = p.new_ones(1)  # 1 while exact; else 1 / (drawn × its probability)
    # Given the network, labels are independent: what a candidate adds only falls as the batch
    # grows. An old gain is an upper bound, and few candidates have to be counted anew.
    bound = p.new_full((m,), torch.inf)
    picked: list[int] = []
    scores: list[float] = []
    for _ in range(q):
        gain = partial(_gain, joint, weight, p, doubt)
        at = lazy_argmax(bound, gain, max(16, BLOCK // (len(joint) * C)))
        scores.append(float(bound[at]) + (scores[-1] if scores else 0.0))
        picked.append(at)
        bound[at] = -torch.inf
        joint = (joint[:, None] * p[at].T[None]).reshape(-1, T)
        weight = weight.repeat_interleave(C)
        if len(joint) > most:
            mass = joint.mean(1) * weight
            drawn = torch.multinomial(mass, most, replacement=True, generator=rng)
            joint = joint[drawn]
            weight = 1 / (most * joint.mean(1))
    return torch.tensor(picked), torch.tensor(scores, dtype=torch.float64)


def _gain(joint: Tensor, weight: Tensor, p: Tensor, doubt: Tensor, rows: Tensor) -> Tensor:
    """(m,) what some candidates' labels add to the batch's: H(y | batch) − H(y | network)."""
    T, C = p.shape[1:]
    both = joint @ p[rows].permute(1, 0, 2).reshape(T, -1) / T
    information = (weight @ _plog(both)).view(len(rows), C).sum(1)
    return weight @ _plog(joint.mean(1)) - information - doubt[rows]


def _plog(p: Tensor) -> Tensor:
    """p log p, 0 at 0."""
    return p.clamp_min(torch.finfo(p.dtype).tiny).log_().mul_(p)


def network_samples(s: QueryContext, rng: torch.Generator) -> Tensor:
    """(m, T, C) probabilities of the candidates by T plausible networks.

    Dropout, if the network has any; else an ensemble of networks trained like it.
    """
    drops = [
        m for m in s.model.modules() if isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0
    ]
    seed = int(torch.randint(2**31, (1,), generator=rng))
    x = s.learnt.seen(s.candidates)
    if drops:
        with eval_mode(s.model), torch.random.fork_rng():
            torch.manual_seed(seed)
            outputs = [_dropped(s.model, drops, x) for _ in range(SAMPLES)]
    elif s.fresh is not None and s.training is not None:
        outputs = [predict(_member(s, seed + i), x) for i in range(MEMBERS)]
    else:
        raise ModelError(
            "bald needs several plausible networks, but this one has no dropout and no recipe to "
            "train more: add nn.Dropout (`--set model.dropout=0.2`), or pass `fresh` and `training`"
        )
    method = "softmax" if s.loss == "cross-entropy" else "simplex"
    return probabilities(torch.stack(outputs, 1).double().cpu(), method)


def _dropped(model: nn.Module, drops: Sequence[nn.Module], x: Tensor | Samples) -> Tensor:
    """One pass with dropout on; `predict` would switch it off."""
    for module in drops:
        module.training = True
    with torch.no_grad():
        return torch.cat(
            [forward(model, x[start : start + 512]) for start in range(0, len(x), 512)]
        )


def _member(s: QueryContext, seed: int) -> nn.Module:
    assert s.fresh is not None
    assert s.training is not None
    model = fresh_start(s.fresh, None, s.training, seed=seed)
    device = next(s.model.parameters()).device
    classes = s.candidate_outputs.shape[1]
    model.to(device)
    if len(s.labelled):
        train(model, s.inputs[s.labelled], s.labels, classes, s.training, seed=seed)
    return model


def _batch_bald(
    s: QueryContext, q: int, rng: torch.Generator, mode: str, ask: Ask | None
) -> QueryBatch:
    with s.timed("samples"):
        p = network_samples(s, rng)
    with s.timed("score"):
        order, scores = batch_bald(p, q, rng)
    return QueryBatch(s.candidates[order], scores)


BAYESIAN = (
    Strategy(
        "bald",
        "a network with dropout (else an ensemble is trained): where plausible networks disagree",
        "Houlsby, Huszár, Ghahramani & Lengyel 2011; Gal, Islam & Ghahramani 2017",
        scored(lambda s, rng: bald(network_samples(s, rng))),
        needs_network=True,
    ),
    Strategy(
        "batchbald",
        "as bald, for batches: counts what the labels say together; slow for large batches",
        "Kirsch, van Amersfoort & Gal 2019, BatchBALD",
        _batch_bald,
        needs_network=True,
    ),
)
