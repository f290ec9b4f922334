"""Build snapshots: predictions and kernel of the items, for the page.

If embeddings must be computed first, snapshots are built in steps: the first few hundred items can
be queried within seconds whatever the size of the pool, and the others follow.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from labelahead.data import Answers, Data
from labelahead.data.dataset import UNKNOWN, Loaded
from labelahead.data.file_tree import UnreadableItemsError
from labelahead.data.folder import arrange_by_ids
from labelahead.data.loading import load_source
from labelahead.data.pool import Pool
from labelahead.data.positions import PositionIndex
from labelahead.errors import InputError
from labelahead.inference.exact import EXACT, ExactModel
from labelahead.inference.network import FittedModel
from labelahead.inference.pool_posterior import drift_warning
from labelahead.learner.config import Campaign
from labelahead.learner.encoding import is_slow_embedding, standardises_features
from labelahead.learner.preparation import (
    PreparedCampaign,
    choose_model_and_embedding,
    prepare_campaign,
)
from labelahead.seeds import make_generator
from labelahead.server.exact_snapshot import ExactSnapshot
from labelahead.server.snapshot import (
    FitFacts,
    LeaveOneOutFacts,
    NetworkSnapshot,
    PoolFacts,
    PoolMap,
    Snapshot,
    TrainingRequest,
)
from labelahead.strategies import find_strategy
from labelahead.strategies.base import QueryConfig
from labelahead.strategies.context import QueryContext

__all__ = [
    "FIRST_ITEMS",
    "MAX_ACTIVE_ITEMS",
    "ProgressCallback",
    "SnapshotBuilder",
    "build_snapshot",
    "compute_map",
    "load_page_data",
    "shuffle_positions",
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


def load_page_data(campaign: Campaign, recorded: Sequence[str] = ()) -> Loaded:
    """Load the data of a page, in the order of its journal."""
    return arrange_by_ids(load_source(campaign.data, campaign.seed), recorded)


def shuffle_positions(n: int, seed: int) -> Tensor:
    """Return (n,) positions in the random order of the first queries and of the encoding."""
    return torch.randperm(n, generator=make_generator(seed, "page"))


class SnapshotBuilder:
    """Build snapshots of the data; items that cannot be read are left out and reported.

    first_items: encoded before the first snapshot. max_active_items: of a larger pool, so many
    items are drawn at random.
    """

    def __init__(
        self,
        campaign: Campaign,
        loaded: Loaded,
        test: Mapping[int, int],
        unreadable: Mapping[int, str] | None = None,
        *,
        first_items: int = FIRST_ITEMS,
        max_active_items: int = MAX_ACTIVE_ITEMS,
    ) -> None:
        data, self.answers = _set_test_items(loaded, test)
        # Guesses are in the order of the page's classes.
        self.data = replace(data, classes=campaign.data.classes or data.classes)
        name, embedding, _ = choose_model_and_embedding(
            campaign, self.data
        )  # of all of it, not of the first few
        model = replace(campaign.model, name=name)
        self.campaign = replace(
            campaign, model=model, data=replace(campaign.data, embedding=embedding)
        )
        self.encodes_in_steps = not standardises_features(name) and is_slow_embedding(
            embedding, self.data
        )
        self.unreadable = dict(unreadable or {})
        self.first_items = first_items
        self.max_active_items = max_active_items
        self._last: tuple[Tensor, PreparedCampaign] | None = None

    def build_snapshots(
        self, order: TrainingRequest, on_progress: ProgressCallback
    ) -> Iterator[tuple[Snapshot, bool]]:
        """Yield snapshots after these labels, and whether each is the last one.

        Earlier snapshots contain a part of the pool.
        """
        every = self._encoding_order([p for p, _ in order.labels])
        sizes = [len(every)]
        if self.encodes_in_steps:
            first = self.first_items + len(order.labels)
            sizes = [
                first * GROWTH_FACTOR**k for k in range(20) if first * GROWTH_FACTOR**k < len(every)
            ] + sizes
        for size in sizes:
            at, ready = self._prepare_readable(every[:size], len(every), on_progress)
            last = size == sizes[-1]
            if len(at) or last:
                made = build_snapshot(ready, order.with_rows(PositionIndex(at)), on_progress)
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
                ready = prepare_campaign(
                    self.campaign, given, lambda what, done, n: on_progress(what, done / total)
                )
                _ = ready.inputs
            except UnreadableItemsError as error:
                self.unreadable |= {int(fine[i]): why for i, why in error.failed.items()}
                continue
            self._last = fine, ready
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
    ready: PreparedCampaign, order: TrainingRequest, on_progress: ProgressCallback | None = None
) -> Snapshot:
    """Fit a model on the labels and compute its kernel, as a campaign does."""
    report = on_progress or (lambda what, done: None)
    if ready.campaign.model.name == EXACT:
        return _build_exact_snapshot(ready, report).refresh(order)
    return _build_network_snapshot(ready, order, report)


def _build_network_snapshot(
    ready: PreparedCampaign, order: TrainingRequest, report: ProgressCallback
) -> NetworkSnapshot:
    """Train a new network on the labels; round 0: on none."""
    campaign, inputs = ready.campaign, ready.inputs
    query_config, classes = (
        _choose_query_config(campaign.asking, len(inputs)),
        max(order.classes, 2),
    )
    pool = Pool(len(inputs), test=ready.data.test)
    if order.labels:
        pool.label([p for p, _ in order.labels], [c for _, c in order.labels])
    # Campaigns count rounds from 0.
    seed = ready.training.derive_seed(campaign.seed, max(order.round - 1, 0))
    if order.round:
        report("training", 0.0)
    learner, trained = (
        ready.make_learner(classes),
        pool if order.round else Pool(len(inputs), test=ready.data.test),
    )
    learnt = learner.fit(trained.labelled, trained.labels, seed=seed)
    notes: tuple[str, ...] = ()
    accuracy: float | None = None
    drift: float | None = None
    if learnt.trained:
        notes = tuple(learnt.trained.notes)
        accuracy = _measure_accuracy(ready, learnt)
    report("kernel", 0.5)
    start = time.perf_counter()
    now = QueryContext.from_pool(
        learnt.model, inputs, trained, query_config, loss=learnt.loss, seed=campaign.seed
    )
    tangent = now.kernel_arguments
    outputs = now.start if order.round else torch.zeros_like(now.start)
    if order.round:
        drift = now.drift
        notes = (*notes, *filter(None, [drift_warning(drift)]))
    seconds = learnt.seconds + time.perf_counter() - start
    report("map", 0.9)
    pool_map = compute_map(now.points, tangent)
    leave_one_out = None
    if len(pool) > 1:
        others, residual = learner.leave_one_out_predictions(
            pool.labelled, pool.labels, seed=seed, find_wrong_labels=True
        )
        leave_one_out = LeaveOneOutFacts.from_predictions(
            others, residual, pool.labelled, pool.labels, order.random_sample
        )
    return NetworkSnapshot(
        round=order.round,
        points=now.points,
        outputs=outputs.double().cpu(),
        kernel_arguments=tangent,
        labels=dict(order.labels) if order.round else {},
        noise=now.noise,
        strategy=str(query_config.strategy) if order.round else "resolve",
        evaluation=query_config.evaluation,
        pool_facts=PoolFacts(pool_map),
        fit_facts=FitFacts(len(pool), seconds, accuracy, drift, notes, leave_one_out),
    )


def _build_exact_snapshot(ready: PreparedCampaign, report: ProgressCallback) -> ExactSnapshot:
    """Build the snapshot of the exact learner without labels; later ones reuse its embeddings."""
    campaign, inputs = ready.campaign, ready.rows
    query_config = find_strategy(campaign.asking.strategy).with_default_noise(campaign.asking)
    pool = Pool(len(inputs), test=ready.data.test)
    order = torch.randperm(
        len(pool.unlabelled), generator=make_generator(campaign.seed, "candidates", 0)
    )
    points = pool.unlabelled[order]  # the first ones are the evaluation set
    report("kernel", 0.5)
    model = ready.make_exact_learner(2).blank_model
    known = _find_known_test(ready)
    units, guesses = _split_units(model, inputs[points])
    test_units, test_guesses = _split_units(model, inputs[known])
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
        pool_facts=PoolFacts(compute_map(points, {"features": units})),
        units=units,
        weights=mixture.weights,
        test=(test_units, ready.answers.take(known)) if ready.answers and len(known) else None,
        guesses=guesses,
        test_guesses=test_guesses,
        trust=tuple(model.trust.tolist()),
    )


def _split_units(model: ExactModel, inputs: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return unit features (n, d) of inputs, and their guesses (n, G, C) if there are some."""
    rows = model.normalise_rows(inputs).cpu()
    if not model.guess_width:
        return rows, None
    features = model.take_features(rows)
    shape = len(rows), len(model.trust), model.known_classes
    return features, rows[:, features.shape[1] :].reshape(shape)


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


def _set_test_items(loaded: Loaded, test: Mapping[int, int]) -> Loaded:
    """Return the data with these test items; their class numbers are those of the page."""
    data, _ = loaded
    at = torch.tensor(sorted(test), dtype=torch.int64)
    labels = torch.full((len(data),), UNKNOWN)
    labels[at] = torch.tensor([test[int(p)] for p in at], dtype=torch.int64)
    return replace(data, test=at), Answers(labels, data.ids)


def _measure_accuracy(ready: PreparedCampaign, learnt: FittedModel) -> float | None:
    """Return the accuracy on the labelled test items, or None."""
    known = _find_known_test(ready)
    return None if ready.answers is None else learnt.accuracy(known, ready.answers.take(known))


def _find_known_test(ready: PreparedCampaign) -> Tensor:
    """Return (t,) positions of the test items whose class is known."""
    test = ready.data.test
    return test[:0] if ready.answers is None else test[ready.answers.has_label[test]]


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
