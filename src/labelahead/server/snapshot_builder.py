"""Build snapshots: predictions and kernel of the items, for the page.

If embeddings must be computed first, snapshots are built in steps: the first few hundred items can
be queried within seconds whatever the size of the pool, and the others follow.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from labelahead.data import Answers, Data
from labelahead.data.dataset import UNKNOWN, Loaded
from labelahead.data.file_tree import UnreadableItemsError
from labelahead.data.guesses import resolve_guess_source, update_guesses
from labelahead.data.pool import Pool
from labelahead.data.positions import PositionIndex
from labelahead.errors import InputError
from labelahead.inference.exact_model import ExactModel
from labelahead.inference.network import FittedModel
from labelahead.inference.pool_posterior import drift_warning
from labelahead.learner.config import Campaign, Source
from labelahead.learner.encoding import is_slow_embedding
from labelahead.learner.model_kind import get_model_kind
from labelahead.learner.preparation import (
    PreparedCampaign,
    choose_model_and_embedding,
    prepare_campaign,
)
from labelahead.seeds import make_generator
from labelahead.server.exact_snapshot import ExactSnapshot
from labelahead.server.label_state import LabelState
from labelahead.server.snapshot import (
    FitFacts,
    LeaveOneOutFacts,
    NetworkSnapshot,
    PoolFacts,
    PoolMap,
    Snapshot,
    TrainingRequest,
)
from labelahead.server.task_snapshot import TaskSnapshot
from labelahead.strategies import find_strategy
from labelahead.strategies.base import QueryConfig
from labelahead.strategies.context import QueryContext
from labelahead.tasks import Task

__all__ = [
    "FIRST_ITEMS",
    "MAX_ACTIVE_ITEMS",
    "ProgressCallback",
    "SnapshotBuilder",
    "build_snapshot",
    "compute_map",
    "make_guess_key",
    "shuffle_positions",
    "spread_columns",
    "with_current_classes",
]

FIRST_ITEMS = 256  # encoded before the first query
GROWTH_FACTOR = 4  # each further snapshot has this many times as many items
# Of a larger pool, this many items are drawn at random, so that an answer can update them at once.
MAX_ACTIVE_ITEMS = 20_000
MAX_DENSE_ITEMS = 6000  # with a dense kernel; larger pools use sketched features
SKETCH_FEATURES = 1024
EVALUATION_ITEMS = 500  # size of the evaluation set of such a pool
MAP_POINTS = 3000  # number of points on the map
ProgressCallback = Callable[[str, float], None]  # (activity, fraction done)


def shuffle_positions(n: int, seed: int) -> Tensor:
    """Return (n,) positions in the random order of the first queries and of the encoding."""
    return torch.randperm(n, generator=make_generator(seed, "page"))


def with_current_classes(
    campaign: Campaign, data: Data, label_state: LabelState
) -> tuple[Campaign, Data]:
    """Return campaign and data with guesses about the classes that there are now.

    Guesses of a former name count for the class that was renamed, or into which it was merged.
    """
    if not campaign.data.has_guesses:
        return campaign, data
    active, former = label_state.active_names, label_state.former_classes
    guesses = {name: update_guesses(g, active, former) for name, g in data.guesses.items()}
    return (
        replace(campaign, data=replace(campaign.data, classes=active)),
        replace(data, guesses=guesses, former_classes=dict(former)),
    )


def make_guess_key(
    source: Source, classes: Sequence[str], numbers: Sequence[int], former: Mapping[str, str | None]
) -> str:
    """Return what the guesses of a snapshot depend on; "" without guesses.

    Args:
        source: Which guesses are wanted.
        classes: Names of the classes that can be predicted.
        numbers: Their numbers on the page.
        former: Former names of classes.
    """
    if not source.has_guesses:
        return ""
    named = dict(zip(numbers, classes, strict=False))
    about = source.class_descriptions, source.class_examples
    guessers = [*map(resolve_guess_source, source.guesses)], source.prior
    return json.dumps(
        [guessers, sorted(named.items()), sorted(former.items()), about], default=list
    )


class SnapshotBuilder:
    """Build snapshots of the data; items that cannot be read are left out and reported.

    first_items: encoded before the first snapshot. max_active_items: of a larger pool, so many
    items are drawn at random.
    """

    def __init__(
        self,
        campaign: Campaign,
        data: Data,
        test: Mapping[int, int],
        unreadable: Mapping[int, str] | None = None,
        *,
        first_items: int = FIRST_ITEMS,
        max_active_items: int = MAX_ACTIVE_ITEMS,
    ) -> None:
        # Guesses are in the order of the page's classes.
        data = replace(data, classes=campaign.data.classes or data.classes)
        self.data, self.answers = _set_test_items(data, test)
        name, embedding, _ = choose_model_and_embedding(
            campaign, self.data
        )  # of all of it, not of the first few
        model = replace(campaign.model, name=name)
        self.campaign = replace(
            campaign, model=model, data=replace(campaign.data, embedding=embedding)
        )
        self.encodes_in_steps = not get_model_kind(
            name
        ).standardises_features and is_slow_embedding(embedding, self.data)
        self.unreadable = dict(unreadable or {})
        self.first_items = first_items
        self.max_active_items = max_active_items
        self._last: tuple[Tensor, PreparedCampaign] | None = None

    def build_snapshots(
        self, request: TrainingRequest, on_progress: ProgressCallback
    ) -> Iterator[tuple[Snapshot, bool]]:
        """Yield snapshots after these labels, and whether each is the last one.

        Earlier snapshots contain a part of the pool.
        """
        every = self._encoding_order([p for p, _ in request.labels])
        sizes = [len(every)]
        if self.encodes_in_steps:
            first = self.first_items + len(request.labels)
            sizes = [
                first * GROWTH_FACTOR**k for k in range(20) if first * GROWTH_FACTOR**k < len(every)
            ] + sizes
        for size in sizes:
            at, prepared = self._prepare_readable(every[:size], len(every), on_progress)
            last = size == sizes[-1]
            if len(at) or last:
                rows = request.with_rows(PositionIndex(at))
                made = build_snapshot(prepared, rows, on_progress)
                made = made.with_positions(at)
                facts = replace(made.pool_facts, unreadable=dict(self.unreadable), is_whole=last)
                yield replace(made, pool_facts=facts), last

    def _encoding_order(self, labelled: Sequence[int]) -> Tensor:
        """Return (m,) positions in the order of encoding; of a very large pool a random part."""
        n, known = len(self.data), torch.tensor(labelled, dtype=torch.int64)
        if not self.encodes_in_steps:
            return torch.arange(n)
        shuffled = shuffle_positions(n, self.campaign.seed)
        test = torch.isin(shuffled, self.data.test)
        # The part does not depend on the labels, because the model is centred on its mean.
        pool = shuffled[~test][: self.max_active_items]
        pool = pool[~torch.isin(pool, known)]
        rest = shuffled[test | torch.isin(shuffled, pool[self.first_items :])]
        return torch.cat([known, pool[: self.first_items], rest])

    def prepare_items(
        self, labelled: Iterable[int], on_progress: ProgressCallback | None = None
    ) -> tuple[Tensor, PreparedCampaign]:
        """Return the positions that a model is fitted among, and their prepared data.

        These are the items that the page can query.
        """
        every = self._encoding_order(list(labelled))
        return self._prepare_readable(every, len(every), on_progress or (lambda what, done: None))

    def _prepare_readable(
        self, at: Tensor, total: int, on_progress: ProgressCallback
    ) -> tuple[Tensor, PreparedCampaign]:
        """Return those of (m,) positions that can be read, and their prepared data."""
        while True:
            broken = torch.tensor(sorted(self.unreadable), dtype=torch.int64)
            fine = at[~torch.isin(at, broken)]
            if self._last is not None and torch.equal(self._last[0], fine):
                return self._last
            if not len(fine):
                names = ", ".join(self.data.ids[p] for p in list(self.unreadable)[:3])
                raise InputError(
                    f"none of {len(at)} files can be read ({names}, ...); expected whole pictures "
                    "or sounds"
                )
            whole = torch.equal(fine, torch.arange(len(self.data)))
            given = (
                (self.data, self.answers) if whole else _take_part(self.data, self.answers, fine)
            )
            try:
                prepared = prepare_campaign(
                    self.campaign, given, lambda what, done, n: on_progress(what, done / total)
                )
                _ = prepared.inputs
            except UnreadableItemsError as error:
                self.unreadable |= {int(fine[i]): why for i, why in error.failed.items()}
                continue
            self._last = fine, prepared
            return self._last


def _take_part(data: Data, answers: Answers | None, at: Tensor) -> Loaded:
    some = data.select(at)
    if answers is None:
        return some, None
    labels = torch.full((len(at),), UNKNOWN)
    known = answers.has_label[at]
    labels[known] = answers.take(at[known])
    return some, Answers(labels, some.ids)


def build_snapshot(
    prepared: PreparedCampaign,
    request: TrainingRequest,
    on_progress: ProgressCallback | None = None,
) -> Snapshot:
    """Fit a model on the labels and compute its kernel, as a campaign does."""
    report = on_progress or (lambda what, done: None)
    if prepared.task is not None:
        return _build_task_snapshot(prepared, prepared.task, report)
    if prepared.kind.needs_training:
        return _build_network_snapshot(prepared, request, report)
    return _build_exact_snapshot(prepared, request, report).refresh(request)


def _build_network_snapshot(
    prepared: PreparedCampaign, request: TrainingRequest, report: ProgressCallback
) -> NetworkSnapshot:
    """Train a new network on the labels; round 0: on none."""
    campaign, inputs = prepared.campaign, prepared.inputs
    query_config, classes = (
        _choose_query_config(campaign.asking, len(inputs)),
        max(request.classes, 2),
    )
    pool = Pool(len(inputs), test=prepared.data.test)
    # A network is not trained on items of no class; they are learnt by look-ahead.
    trained_labels = {p: c for p, c in request.labels if c >= 0}
    if trained_labels:
        pool.label(list(trained_labels), list(trained_labels.values()))
    # Campaigns count rounds from 0.
    seed = prepared.training.derive_seed(campaign.seed, max(request.round - 1, 0))
    if request.round:
        report("training", 0.0)
    learner, trained = (
        prepared.make_learner(classes),
        pool if request.round else Pool(len(inputs), test=prepared.data.test),
    )
    fitted = learner.fit(trained.labelled, trained.labels, seed=seed)
    notes: tuple[str, ...] = ()
    accuracy: float | None = None
    drift: float | None = None
    if fitted.trained:
        notes = tuple(fitted.trained.notes)
        accuracy = _measure_accuracy(prepared, fitted)
    report("kernel", 0.5)
    start = time.perf_counter()
    now = QueryContext.from_pool(
        fitted.model, inputs, trained, query_config, loss=fitted.loss, seed=campaign.seed
    )
    tangent = now.kernel_arguments
    outputs = now.start if request.round else torch.zeros_like(now.start)
    if request.round:
        drift = now.drift
        notes = (*notes, *filter(None, [drift_warning(drift)]))
    seconds = fitted.seconds + time.perf_counter() - start
    report("map", 0.9)
    pool_map = compute_map(now.points, tangent)
    leave_one_out = None
    if len(pool) > 1:
        others, residual = learner.leave_one_out_predictions(
            pool.labelled, pool.labels, seed=seed, find_wrong_labels=True
        )
        leave_one_out = LeaveOneOutFacts.from_predictions(
            others, residual, pool.labelled, pool.labels, request.random_sample
        )
    return NetworkSnapshot(
        round=request.round,
        points=now.points,
        outputs=outputs.double().cpu(),
        kernel_arguments=tangent,
        labels=dict(request.labels) if request.round else {},
        noise=now.noise,
        strategy=str(query_config.strategy) if request.round else "resolve",
        evaluation=query_config.evaluation,
        goal=query_config.goal,
        pool_facts=PoolFacts(pool_map),
        fit_facts=FitFacts(len(pool), seconds, accuracy, drift, notes, leave_one_out),
    )


def _build_exact_snapshot(
    prepared: PreparedCampaign, request: TrainingRequest, report: ProgressCallback
) -> ExactSnapshot:
    """Build the snapshot of the exact learner without labels; later ones reuse its embeddings."""
    campaign, inputs = prepared.campaign, prepared.rows
    query_config = find_strategy(campaign.asking.strategy).with_default_noise(campaign.asking)
    pool = Pool(len(inputs), test=prepared.data.test)
    order = torch.randperm(
        len(pool.unlabelled), generator=make_generator(campaign.seed, "candidates", 0)
    )
    points = pool.unlabelled[order]  # the first ones are the evaluation set
    report("kernel", 0.5)
    model = prepared.make_exact_learner(2).blank_model
    known = _find_known_test(prepared)
    units, guesses = _split_units(model, inputs[points])
    test_units, test_guesses = _split_units(model, inputs[known])
    guesses, test_guesses = (
        spread_columns(said, request.active_classes) for said in (guesses, test_guesses)
    )
    mixture, evaluation = model.get_mixture(), query_config.evaluation
    if len(points) > MAX_DENSE_ITEMS:
        evaluation = min(evaluation or EVALUATION_ITEMS, EVALUATION_ITEMS)
    return ExactSnapshot(
        round=0,
        points=points,
        labels={},
        noise=query_config.noise or mixture.noise,
        own_noise=query_config.noise,
        strategy=str(query_config.strategy),
        evaluation=evaluation,
        goal=query_config.goal,
        pool_facts=PoolFacts(
            compute_map(points, {"features": units}), guess_key=_describe_guesses(prepared, request)
        ),
        units=units,
        weights=mixture.weights,
        test=(test_units, prepared.answers.take(known))
        if prepared.answers and len(known)
        else None,
        guesses=guesses,
        test_guesses=test_guesses,
        guessers=() if prepared.guesses is None else prepared.guesses.titles,
    )


def _build_task_snapshot(
    prepared: PreparedCampaign, task: Task, report: ProgressCallback
) -> TaskSnapshot:
    """Build the snapshot of a task without labels; later ones reuse its embeddings."""
    campaign, inputs, test = prepared.campaign, prepared.rows, prepared.data.test
    query_config = find_strategy(campaign.asking.strategy).with_default_noise(campaign.asking)
    is_pool = torch.ones(len(inputs), dtype=torch.bool).index_fill_(0, test, False)
    free = is_pool.nonzero().flatten()
    order = torch.randperm(len(free), generator=make_generator(campaign.seed, "candidates", 0))
    points = free[order]  # the first ones are the evaluation set
    report("kernel", 0.5)
    model = prepared.make_exact_learner(len(task.outputs)).blank_model
    units, evaluation = model.normalise_rows(inputs[points]).cpu(), query_config.evaluation
    if len(points) > MAX_DENSE_ITEMS:
        evaluation = min(evaluation or EVALUATION_ITEMS, EVALUATION_ITEMS)
    return TaskSnapshot(
        round=0,
        points=points,
        labels={},
        noise=query_config.noise or model.noise,
        own_noise=query_config.noise,
        strategy=str(query_config.strategy),
        evaluation=evaluation,
        pool_facts=PoolFacts(compute_map(points, {"features": units})),
        task=task,
        units=units,
        weights=model.get_mixture().weights,
        offset=model.offset.cpu(),
        test_points=test,
        test_units=model.normalise_rows(inputs[test]).cpu(),
    )


def _split_units(model: ExactModel, inputs: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return unit features (n, d) of inputs, and their guesses (n, G, C) if there are some."""
    rows = model.normalise_rows(inputs).cpu()
    if not model.guess_width:
        return rows, None
    features = model.take_features(rows)
    shape = len(rows), len(model.trust), model.known_classes
    return features, rows[:, features.shape[1] :].reshape(shape)


def spread_columns(guesses: Tensor | None, numbers: Sequence[int] | None) -> Tensor | None:
    """Return guesses (n, G, A) about active classes at the columns of their numbers."""
    if guesses is None or numbers is None or tuple(numbers) == tuple(range(guesses.shape[2])):
        return guesses
    out = guesses.new_zeros((*guesses.shape[:2], max(numbers) + 1))
    out[:, :, list(numbers)] = guesses
    return out


def _describe_guesses(prepared: PreparedCampaign, request: TrainingRequest) -> str:
    if prepared.guesses is None:
        return ""
    classes = prepared.guesses.classes
    numbers = range(len(classes)) if request.active_classes is None else request.active_classes
    return make_guess_key(prepared.campaign.data, classes, numbers, prepared.guesses.former)


def _choose_query_config(query_config: QueryConfig, items: int) -> QueryConfig:
    """Return settings with all items as candidates, with a sketched kernel for large pools."""
    query_config = find_strategy(query_config.strategy).with_default_noise(query_config)
    if (
        query_config.sketch is None
        and items > MAX_DENSE_ITEMS
        and (query_config.candidates or items) > MAX_DENSE_ITEMS
    ):
        few = min(query_config.evaluation or EVALUATION_ITEMS, EVALUATION_ITEMS)
        return replace(query_config, candidates=None, sketch=SKETCH_FEATURES, evaluation=few)
    return query_config


def _set_test_items(data: Data, test: Mapping[int, int]) -> Loaded:
    """Return the data with these test items; their class numbers are those of the page."""
    at = torch.tensor(sorted(test), dtype=torch.int64)
    labels = torch.full((len(data),), UNKNOWN)
    labels[at] = torch.tensor([test[int(p)] for p in at], dtype=torch.int64)
    return replace(data, test=at), Answers(labels, data.ids)


def _measure_accuracy(prepared: PreparedCampaign, fitted: FittedModel) -> float | None:
    """Return the accuracy on the labelled test items, or None."""
    known = _find_known_test(prepared)
    return (
        None if prepared.answers is None else fitted.accuracy(known, prepared.answers.take(known))
    )


def _find_known_test(prepared: PreparedCampaign) -> Tensor:
    """Return (t,) positions of the test items whose class is known."""
    test = prepared.data.test
    return test[:0] if prepared.answers is None else test[prepared.answers.has_label[test]]


def compute_map(points: Tensor, tangent: Mapping[str, Tensor]) -> PoolMap:
    """Return the two leading components of the centred kernel, for at most `MAP_POINTS` points."""
    n = min(len(points), MAP_POINTS)
    if n < 3:
        return PoolMap(tuple(points.tolist()), (0.0,) * n, (0.0,) * n)
    if "kernel" in tangent:
        K = tangent["kernel"][:n, :n].double().cpu()
        centred = K - K.mean(0) - K.mean(1)[:, None] + K.mean()
    else:
        centred = tangent["features"][:n].double().cpu()
        centred = centred - centred.mean(0)
    generator_state = torch.random.get_rng_state()
    torch.manual_seed(0)  # svd_lowrank uses the global generator only
    u, s, _ = torch.svd_lowrank(centred, q=min(6, *centred.shape), niter=4)
    torch.random.set_rng_state(generator_state)
    xy = u[:, :2] * (s[:2] if "features" in tangent else s[:2].clamp_min(0).sqrt())
    xy = torch.nn.functional.pad(xy, (0, 2 - xy.shape[1]))  # a single column gives points on a line
    xy = xy * torch.sign(xy[xy.abs().argmax(0), torch.arange(2)])  # fix the sign
    xy = xy / xy.abs().amax(0).clamp_min(1e-12)
    return PoolMap(tuple(points[:n].tolist()), _round_values(xy[:, 0]), _round_values(xy[:, 1]))


def _round_values(values: Tensor) -> tuple[float, ...]:
    return tuple(round(v, 4) for v in values.tolist())
