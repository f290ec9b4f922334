"""Which embedding is best for these data: leave-one-out accuracy on the existing labels.

The best embeddings are also joined: "a+b" is their concatenation with equal weights, a mixture of
their linear kernels; the best two are mixed with other weights, too.

The best has the smallest squared error of its leave-one-out predictions: their accuracy moves in
steps of one label. How good the choice is: research/benchmarks/joined.py.

Only the labelled items and a random sample of the others are encoded, so that the answer comes long
before a whole pool is.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import scipy  # its submodules are imported when they are used
import torch
from torch import Tensor

from labelahead.data.classes import require_distinct_classes
from labelahead.data.dataset import Answers, Data, Loaded
from labelahead.data.joined_embeddings import join_embeddings, split_joined_embedding
from labelahead.data.loading import load_source
from labelahead.data.split import CLASSES
from labelahead.data.vector_files import attach_named_vectors, is_vector_file
from labelahead.errors import InputError
from labelahead.inference.sources import Annotations
from labelahead.learner.config import Campaign, Network, Progress
from labelahead.learner.encoding import can_be_joined, pin_embedding
from labelahead.learner.labelling_query import (
    CollectedLabels,
    collect_labels_by_source,
    with_label_classes,
)
from labelahead.learner.preparation import PreparedCampaign, prepare_campaign
from labelahead.learner.stopping import wilson_interval
from labelahead.models import EXACT
from labelahead.seeds import make_generator

__all__ = [
    "AUTO_PREFIX",
    "EmbeddingScore",
    "compare_embeddings",
    "resolve_auto_embedding",
    "split_embedding_names",
]

AUTO_PREFIX = "auto:"
SAMPLE_ITEMS = 500  # unlabelled items on which embeddings are centred
MIN_LABELS = 4
MAX_LISTED_SCORES = 3  # in the reason of a choice
PAIR_WEIGHTS = ((0.8, 0.2), (0.2, 0.8))  # of the best two joined, besides equal ones


@dataclass(frozen=True)
class EmbeddingScore:
    """How well one embedding separates the classes.

    Attributes:
        embedding: Its name as given.
        accuracy: Leave-one-out accuracy of the exact learner.
        low: Lower end of the 95 % Wilson interval.
        high: Upper end.
        squared_error: Mean squared distance of the leave-one-out predictions from the labels, as
            vectors with an entry per class.
        labels: Number of labels.
        width: Numbers per item.
        seconds: For encoding and scoring.
        p_value: Of the difference from the best embedding on the same labels (exact sign test).
    """

    embedding: str
    accuracy: float
    low: float
    high: float
    squared_error: float
    labels: int
    width: int
    seconds: float
    p_value: float


def split_embedding_names(names: str) -> list[str]:
    """Return the embeddings of a list such as "a,b,c" or "auto:a,b,c".

    >>> split_embedding_names("auto:lite0, facebook/dinov2-small")
    ['lite0', 'facebook/dinov2-small']
    """
    found = [name.strip() for name in names.removeprefix(AUTO_PREFIX).split(",") if name.strip()]
    if not found or len(set(found)) < len(found):
        raise InputError(f"embedding is {names!r}; expected different names, comma-separated")
    return found


def compare_embeddings(
    campaign: Campaign,
    names: Sequence[str],
    *,
    labels: str | Path | None = None,
    progress: Progress | None = None,
) -> list[EmbeddingScore]:
    """Return the score of each embedding and of the best ones joined, best first.

    Args:
        campaign: Data and seed; its network and embedding do not matter.
        names: The embeddings. The best two that can be joined, the best three and so on are joined
            and scored, too, the best two also with unequal weights.
        labels: A file of `id,label`; default: the labels in the data. Labels of several annotators
            are weighed; an item counts as right if its prediction is the label of most of them.
        progress: Called with the stage, the work done and its total.

    Raises:
        InputError: There are too few labels, or an embedding does not fit these data.
    """
    if campaign.data.task != CLASSES:
        raise InputError(
            f"the task is {campaign.data.task}, but embeddings are compared by the accuracy for one "
            "class per item; name one embedding, and compare them by `labelahead compare --task "
            f"{campaign.data.task} --embedding a,b`"
        )
    classes = tuple(require_distinct_classes(campaign.data.classes))
    # With vectors a table needs no column to learn from.
    first = next((name for name in names if is_vector_file(name)), None)
    source = replace(campaign.data, test_fraction=0.0, classes=classes, embedding=first)
    source = with_label_classes(source, labels, campaign.seed)
    data, answers = load_source(source, campaign.seed)
    for name in names:
        data = attach_named_vectors(data, name)
    collected = collect_labels_by_source(data, answers, labels, classes)
    given, class_names = collected.labels, collected.classes
    if len(given) < MIN_LABELS or len(set(given.values())) < 2:
        raise InputError(
            f"there are {len(given)} labels of {len(set(given.values()))} classes; expected at "
            f"least {MIN_LABELS} of 2 or more to compare embeddings"
        )
    some, known = _sample_items(data, given, campaign.seed)
    annotations = _renumber_annotations(collected)

    def evaluate(name: str) -> _Trial:
        candidate = replace(campaign, data=replace(source, embedding=name), model=Network(EXACT))
        prepare = partial(prepare_campaign, candidate, some, progress)
        return _evaluate_embedding(prepare, known, max(len(class_names), 2), annotations)

    trials = {name: evaluate(name) for name in names}
    ranked = sorted(names, key=lambda name: trials[name].squared_error)
    single = [name for name in ranked if len(split_joined_embedding(name)) == 1]
    fit = [name for name in single if can_be_joined(pin_embedding(name, data), data)]
    joined = [join_embeddings(fit[:count]) for count in range(2, len(fit) + 1)]
    if len(fit) > 1:
        joined += [join_embeddings(fit[:2], weights) for weights in PAIR_WEIGHTS]
    trials |= {name: evaluate(name) for name in joined if name not in trials}
    # The first of equals: the fewest encoders, then equal weights.
    ordered = sorted(trials.items(), key=lambda item: item[1].squared_error)
    best = ordered[0][1]
    return [
        EmbeddingScore(
            name,
            float(trial.right.double().mean()),
            *wilson_interval(int(trial.right.sum()), len(known)),
            trial.squared_error,
            len(known),
            trial.width,
            trial.seconds,
            _sign_test(best.right, trial.right),
        )
        for name, trial in ordered
    ]


@dataclass(frozen=True, eq=False)
class _Trial:
    """The leave-one-out predictions with one embedding."""

    right: Tensor  # (L,) bool
    squared_error: float
    width: int
    seconds: float


def _evaluate_embedding(
    prepare: Callable[[], PreparedCampaign],
    known: Tensor,
    classes: int,
    annotations: Annotations | None,
) -> _Trial:
    """Predict each label from the others; the labelled items come first."""
    began = time.perf_counter()
    prepared = prepare()
    learner = replace(prepared.make_exact_learner(classes), annotations=annotations)
    predicted, _ = learner.leave_one_out_predictions(torch.arange(len(known)), known)
    predicted = predicted.cpu()
    errors = predicted - torch.nn.functional.one_hot(known, predicted.shape[1])
    return _Trial(
        predicted.argmax(1) == known,
        float(errors.square().sum(1).mean()),
        int(prepared.rows.shape[1]),
        time.perf_counter() - began,
    )


def resolve_auto_embedding(
    campaign: Campaign, labels: str | Path | None = None, progress: Progress | None = None
) -> tuple[Campaign, str]:
    """Return the campaign with the best of the embeddings "auto:a,b,c", and the reason.

    Without enough labels it is the first of them.
    """
    names = split_embedding_names(campaign.data.embedding or "")
    try:
        scores = compare_embeddings(campaign, names, labels=labels, progress=progress)
    except InputError as error:
        if not str(error).startswith("there are "):
            raise
        chosen, why = names[0], f"embedding: {names[0]}, the first of {len(names)}: {error}"
    else:
        chosen = scores[0].embedding
        listed = ", ".join(
            f"{score.embedding} {score.accuracy:.1%}, squared error {score.squared_error:.3f}"
            for score in scores[:MAX_LISTED_SCORES]
        )
        why = f"embedding: {chosen}, by leave-one-out on {scores[0].labels} labels ({listed})"
    return replace(campaign, data=replace(campaign.data, embedding=chosen)), why


def _sample_items(data: Data, given: Mapping[int, int], seed: int) -> tuple[Loaded, Tensor]:
    """Return the labelled items, then a random sample of the others, and the labels (L,)."""
    labelled = torch.tensor(sorted(given))
    others = torch.ones(len(data), dtype=torch.bool).index_fill_(0, labelled, False)
    rest = others.nonzero().flatten()
    drawn = torch.randperm(len(rest), generator=make_generator(seed, "encoders"))[:SAMPLE_ITEMS]
    at = torch.cat([labelled, rest[drawn]])
    some: tuple[Data, Answers | None] = (data.select(at), None)
    return some, torch.tensor([given[int(p)] for p in labelled])


def _renumber_annotations(collected: CollectedLabels) -> Annotations | None:
    """Return the labels by source, of the items as `_sample_items` orders them."""
    annotations = collected.annotations
    if annotations is None:
        return None
    row = {p: i for i, p in enumerate(sorted(collected.labels))}
    positions = torch.tensor([row[p] for p in annotations.positions.tolist()], dtype=torch.int64)
    return replace(annotations, positions=positions)


def _sign_test(first: Tensor, second: Tensor) -> float:
    """Return the p-value of two predictors being equally often right, on paired items."""
    better, worse = int((first & ~second).sum()), int((second & ~first).sum())
    return float(scipy.stats.binomtest(better, better + worse).pvalue) if better + worse else 1.0
