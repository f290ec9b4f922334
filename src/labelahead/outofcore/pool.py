"""A pool larger than memory: query items, predict all of them, and estimate the error.

Exact: the learner, given the labels; every item's score, given the evaluation sample; a batch among
the candidates in memory. Sampled: the evaluation points, over which a score sums, and the error
estimate.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelahead.data.classes import merge_class_lists, sort_names
from labelahead.data.guesses import NO_FORMER_CLASSES, FormerClasses
from labelahead.data.labels import (
    LabelFile,
    read_labelled_names,
    read_labels_by_source_for_ids,
    read_labels_for_ids,
)
from labelahead.data.positions import PositionIndex
from labelahead.data.records import FILE_NAME
from labelahead.errors import InputError, did_you_mean
from labelahead.inference.exact import ExactLearner
from labelahead.inference.exact_model import MAX_BIAS_FEATURE_COLUMNS, ExactModel
from labelahead.inference.forecast import ErrorForecast
from labelahead.inference.pool_posterior import PoolPosterior, PosteriorOptions
from labelahead.inference.sources import Annotations, SourceAccuracy
from labelahead.learner.labelling_query import QueryItem
from labelahead.outofcore.addresses import absolute_address, list_files, remove_file
from labelahead.outofcore.execution import Executor, Progress, Task, connect_executor, run_tasks
from labelahead.outofcore.guesses import (
    fit_with_guesses,
    is_file_of_guesses,
    read_file_guesses,
    read_partition_guesses,
    require_guess_sources,
)
from labelahead.outofcore.partitions import read_rows
from labelahead.outofcore.scoring import (
    MAX_BLOCK_ITEMS,
    Model,
    RankedCandidates,
    ScoringContext,
    predict_part,
    rank_best,
    score_finalists_on_part,
    score_part,
)
from labelahead.outofcore.sketched_kernel import SketchedModel, align_classes, create_sketched_model
from labelahead.outofcore.store import (
    PartitionEntry,
    read_ids,
    read_manifest,
    require_unchanged,
    take_rows,
)
from labelahead.seeds import make_generator
from labelahead.strategies import STRATEGIES, find_strategy

__all__ = ["Labelled", "LargePool", "PoolPredictionSummary", "PoolSubset"]

EVALUATION_ITEMS, MAX_CANDIDATES = 1000, 2000
# Defaults of the mode "top": a shortlist scored by 2,000 items, of which the first are scored by all.
# With half as many, a quarter of the best hundred of 50,000 items is not on the shortlist
# (docs/benchmarks.md).
TOP_EVALUATION_ITEMS, MIN_FINALISTS, FINALISTS_PER_ITEM = 2000, 1000, 10
PREDICTION_FILE = re.compile(r"part-[0-9]{6}\.parquet")


@dataclass(frozen=True, eq=False)
class Labelled:
    """Labels of items of the pool, in its order."""

    positions: Tensor  # (L,)
    numbers: Tensor  # (L,)
    classes: tuple[str, ...]
    annotations: Annotations | None = None  # all labels by source, if there are several

    def find_annotations(self) -> Annotations | None:
        """Return the annotations with the rows 0 to L − 1 in place of the positions."""
        if self.annotations is None:
            return None
        rows = PositionIndex(self.positions).find_rows(self.annotations.positions)
        return replace(self.annotations, positions=rows)


Labels = str | Path | Mapping[str, str] | Labelled | None


@dataclass(frozen=True, eq=False)
class PoolSubset:
    """The part of a pool in memory: labelled items, the evaluation sample and the best candidates, in
    that order.

    >>> subset = LargePool("features", workers=1).select_subset(labels, candidates=20, evaluation=50)
    >>> len(subset.labelled.positions), subset.evaluation
    (10, 50)
    """

    positions: Tensor  # (h,)
    names: tuple[str, ...] = field(repr=False)
    units: Tensor = field(repr=False)  # (h, d)
    start: Tensor = field(repr=False)  # (h, C)
    labelled: Labelled
    evaluation: int
    model: Model = field(repr=False)
    best: RankedCandidates = field(repr=False)

    def build_posterior(self) -> PoolPosterior:
        """Return the exact posterior of these items; each further label takes milliseconds
        (`with_labels`).
        """
        label_by_position = dict(
            zip(self.labelled.positions.tolist(), self.labelled.numbers.tolist(), strict=True)
        )
        observations = {}
        if isinstance(self.model, ExactModel):  # by row: the model was fitted on rows
            at = self.positions.tolist()
            observations = {at[row]: said for row, said in self.model.observations.items()}
        return PoolPosterior.from_kernel(
            self.positions,
            self.start,
            self.model.kernel_arguments(self.units),
            self.model.noise,
            label_by_position,
            PosteriorOptions(
                evaluation=self.evaluation, cache_cross_covariance=True, observations=observations
            ),
        )

    @cached_property
    def index(self) -> PositionIndex:
        """The rows of the items in the subset."""
        return PositionIndex(self.positions)

    def predict_proba(self, rows: Tensor) -> Tensor:
        """Return class probabilities (q, C) of items by their row (q,) in the subset."""
        return self.model.predict_proba_at(
            self.units[rows], self.start[rows], len(self.labelled.classes) or None
        )


@dataclass(frozen=True)
class PoolPredictionSummary:
    """The result of predicting all items. counts: items per class.

    >>> done = LargePool("features", workers=1).predict(labels, "predictions")
    >>> sum(done.counts.values()), 0 <= done.forecast.error.rate <= 1
    (300, True)
    """

    folder: str
    counts: dict[str, int]
    forecast: ErrorForecast


class LargePool:
    """A pool whose features `embed` wrote, and the engine that processes them.

    Args:
        store: The folder of the features.
        executor: None (processes of this machine), the address of a Dask scheduler or of Ray, a
            Dask `Client`, or an `Executor`.
        workers: Number of local processes.
        progress: Called with the stage, the items done and their total.
        dtype: Of the kernel.
        max_block_items: Items that a worker scores at a time.
        device: Where workers score and predict items; one without float64 counts as the CPU.
        guesses: Columns of the pool's files, or files with ids, that guess the classes
            (`labelahead.outofcore.guesses`). Items are queried as without them; predictions and the
            error estimate start from them.

    Attributes:
        source_accuracy: How often each annotator is right, with a 90 % interval, as the last query
            or prediction estimates it; empty without labels of two annotators.

    >>> pool = LargePool("features", workers=1)
    >>> len(pool), len(pool.query(3, labels))
    (300, 3)
    """

    def __init__(
        self,
        store: str | Path,
        *,
        executor: Any = None,
        workers: int | None = None,
        progress: Progress | None = None,
        dtype: torch.dtype = torch.float32,
        max_block_items: int = MAX_BLOCK_ITEMS,
        device: str = "cpu",
        guesses: Sequence[str] = (),
    ) -> None:
        self.device = device
        self.guesses = tuple(guesses)
        self.store = absolute_address(store)
        self.manifest = read_manifest(store)
        if self.guesses:
            require_guess_sources(self.guesses, self.manifest.schema, columns_only=False)
        self.dtype = dtype
        self.max_block_items = max_block_items
        self.progress = progress
        self.source_accuracy: Mapping[str, SourceAccuracy] = {}
        self._executor = executor
        self._workers = workers
        require_unchanged(self.manifest)
        rows = [entry.rows for entry in self.entries]
        self._ends = np.cumsum(rows)
        self._starts = self._ends - rows

    @property
    def entries(self) -> tuple[PartitionEntry, ...]:
        """All partitions."""
        return self.manifest.entries

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __repr__(self) -> str:
        return f"LargePool({self.store!r}, {len(self):,} items in {len(self.entries):,} parts)"

    @cached_property
    def centre(self) -> Tensor:
        """(d,) mean of all features, accumulated in float64."""
        return (
            torch.tensor([e.total for e in self.entries], dtype=torch.float64).sum(0) / len(self)
        ).to(self.dtype)

    @cached_property
    def bias_feature(self) -> float:
        """As `compute_bias_feature` for rows in memory."""
        if len(self.centre) > MAX_BIAS_FEATURE_COLUMNS:
            return 0.0
        mean = torch.tensor([e.total for e in self.entries], dtype=torch.float64).sum(0) / len(self)
        length = (
            max(0.0, sum(e.squares for e in self.entries) / len(self) - float(mean.square().sum()))
            ** 0.5
        )
        return length if 0 < length < 1e15 else 0.0

    # --- items
    # ----------------------------------------------------------------------------------------------

    @contextmanager
    def _engine(self) -> Iterator[Executor]:
        with connect_executor(self._executor, workers=self._workers) as engine:
            yield engine

    def with_executor(self, executor: Any) -> "LargePool":
        """Return the same pool with another executor."""
        other = copy(self)
        other._executor = executor
        return other

    def local_rows(self, part: int, positions: Tensor) -> list[int]:
        """Return the rows within a partition of items at these positions."""
        return list((positions - int(self._starts[part])).tolist())

    def group_by_partition(self, positions: Tensor) -> dict[int, list[int]]:
        """Return indices into `positions` by the number of the partition."""
        parts: dict[int, list[int]] = {}
        for place, part in enumerate(
            np.searchsorted(self._ends, positions.numpy(), side="right").tolist()
        ):
            parts.setdefault(part, []).append(place)
        return parts

    def read_items(self, positions: Tensor, engine: Executor) -> tuple[Tensor, list[str]]:
        """Return features (q, d) and names of items."""
        parts = self.group_by_partition(positions)
        tasks = [
            (
                self.entries[p].part.source,
                len(at),
                (self.entries[p], self.local_rows(p, positions[at])),
            )
            for p, at in parts.items()
        ]
        rows = torch.empty((len(positions), len(self.centre)), dtype=self.dtype)
        names = [""] * len(positions)
        for at, (features, names_here) in zip(
            parts.values(), run_tasks(engine, "read items", take_rows, tasks), strict=True
        ):
            rows[at] = torch.from_numpy(features.astype(np.float64)).to(self.dtype)
            for place, name in zip(at, names_here, strict=True):
                names[place] = name
        return rows, names

    def find_positions(self, names: Sequence[str], engine: Executor) -> dict[str, int]:
        """Return the positions of the items with these names; unknown names are omitted."""
        found: dict[str, list[int]] = {}
        for name in names:
            source, colon, row = name.rpartition(":")
            if colon and row.isdecimal() and len(row) < 16:
                found[name] = self._positions_of_row(source, int(row))
        wanted = [name for name in names if not found.get(name)]
        searched = (
            [i for i, entry in enumerate(self.entries) if entry.ids is not None] if wanted else []
        )
        tasks = [
            (self.entries[i].part.source, self.entries[i].rows, (self.entries[i], wanted))
            for i in searched
        ]
        for i, rows in zip(
            searched, run_tasks(engine, "find names", find_names, tasks), strict=True
        ):
            for name, row in rows:
                found.setdefault(name, []).append(int(self._starts[i]) + row)
        twice = next((name for name, at in found.items() if len(at) > 1), None)
        if twice is not None:
            raise InputError(
                f"{len(found[twice])} items are called {twice!r}; expected a name of one item: "
                "name another id column "
                "when embedding, or items as file:row"
            )
        return {name: at[0] for name, at in found.items() if at}

    def _positions_of_row(self, source: str, row: int) -> list[int]:
        return [
            int(start) + row - e.part.start
            for start, e in zip(self._starts, self.entries, strict=True)
            if e.part.source == source
            and e.part.start <= row < e.part.start + e.rows
            and not e.failed
        ]

    def resolve_labels(self, labels: Labels, classes: Sequence[str], engine: Executor) -> Labelled:
        """Find the items of a label file, or of a mapping from names to classes."""
        if isinstance(labels, Labelled):
            return labels
        none = torch.zeros(0, dtype=torch.int64)
        if labels is None:
            network_spec = self.manifest.schema.network
            return Labelled(
                none,
                none,
                network_spec.classes
                if network_spec is not None and network_spec.loss
                else tuple(classes),
            )
        given_labels = labels if isinstance(labels, Mapping) else LabelFile.read(labels)
        where = (
            read_labelled_names(given_labels)
            if isinstance(given_labels, LabelFile)
            else dict.fromkeys(given_labels, "labels")
        )
        found = self.find_positions(list(where), engine)
        missing = next((name for name in where if name not in found), None)
        if missing is not None:
            example = read_ids(self.entries[0], [0])[0]
            origin = (
                f"{labels}, {where[missing]}" if isinstance(given_labels, LabelFile) else "labels"
            )
            raise InputError(
                f"{origin}: no item is called {missing!r}; {did_you_mean(missing, list(found)[:2000])}expected "
                f"a name such as {example!r}, or file:row"
            )
        annotations = None
        if isinstance(given_labels, LabelFile):
            places, numbers, names, annotations = self._read_label_file(
                given_labels, found, classes
            )
            at = torch.tensor(list(found.values()), dtype=torch.int64)[places]
        else:
            names = merge_class_lists(
                tuple(sort_names(set(map(str, given_labels.values())))), classes
            )
            at = torch.tensor([found[name] for name in given_labels], dtype=torch.int64)
            numbers = torch.tensor(
                [names.index(str(label)) for label in given_labels.values()], dtype=torch.int64
            )
        if len(at) and len(names) < 2:
            raise InputError(
                f"all labels are {names[0]!r}; expected at least two classes: name the others "
                "with classes (--classes)"
            )
        if self.manifest.schema.network is not None:
            numbers, names = align_classes(self.manifest.schema.network, names, numbers)
        order = (
            at.argsort()
        )  # in the order of the pool: a fit does not depend on the order of a file
        return Labelled(at[order], numbers[order], names, annotations)

    def _read_label_file(
        self, file: LabelFile, found: Mapping[str, int], classes: Sequence[str]
    ) -> tuple[Tensor, Tensor, tuple[str, ...], Annotations | None]:
        """Return rows among the found items, their labels, the classes, and all labels by source.

        Only the exact learner tells sources apart: the kernel of a network takes one label per item.

        Args:
            file: The label file.
            found: Name -> position in the pool, of all items in the file.
            classes: Names of classes without labels.
        """
        ids = list(found)
        if self.manifest.schema.network is not None:
            places, numbers, names = read_labels_for_ids(file, ids, classes=classes, rows={})
            return places, numbers, merge_class_lists(names, classes), None
        read = read_labels_by_source_for_ids(file, ids, classes=classes, rows={})
        given = {**Annotations.vote(read.labels), **read.resolved}
        positions = list(found.values())
        rows = [(positions[row], number, source) for row, number, source in read.labels]
        several = len({source for _, _, source in rows}) > 1
        return (
            torch.tensor(list(given), dtype=torch.int64),
            torch.tensor(list(given.values()), dtype=torch.int64),
            merge_class_lists(read.classes, classes),
            Annotations.from_rows(rows) if several else None,
        )

    def sample_positions(self, count: int, without: Tensor, seed: int) -> Tensor:
        """Draw positions (e,) at random, except for some.

        The same seed gives the same sample, apart from items labelled since.
        """
        n, closed, rng = len(self), set(without.tolist()), make_generator(seed, "evaluation")
        if n <= 4 * (count + len(closed)):
            drawn = torch.randperm(n, generator=rng).tolist()
        else:
            drawn = []
            while len(drawn) < count + len(closed):
                drawn = list(
                    dict.fromkeys([*drawn, *torch.randint(n, (2 * count,), generator=rng).tolist()])
                )
        return torch.tensor([p for p in drawn if p not in closed][:count], dtype=torch.int64)

    # --- learning
    # -------------------------------------------------------------------------------------------

    def fit(self, labels: Labelled, rows: Tensor) -> Model:
        """Fit rows (n, d); the first L rows have these labels."""
        if self.manifest.schema.network is not None:
            return self._create_sketched_model(labels).fit(
                rows[: len(labels.numbers)], labels.numbers
            )
        return self._fit_exact(labels, rows)[1]

    def _create_sketched_model(self, labels: Labelled) -> SketchedModel:
        network_spec = self.manifest.schema.network
        assert network_spec is not None
        scale = sum(e.squares for e in self.entries) / len(self)
        return create_sketched_model(network_spec, max(len(labels.classes), 2), scale, self.dtype)

    def _fit_exact(
        self, labels: Labelled, rows: Tensor, guessers: int = 0
    ) -> tuple[ExactLearner, ExactModel]:
        classes = max(len(labels.classes), 2)
        model = ExactModel(self.centre, classes, self.bias_feature, guessers=guessers)
        learner = ExactLearner(rows, model, annotations=labels.find_annotations())
        fitted = learner.fit(torch.arange(len(labels.numbers)), labels.numbers)
        self.source_accuracy = learner.source_accuracy()
        return learner, fitted.kernel_model

    def select_subset(
        self,
        labels: Labels = None,
        *,
        classes: Sequence[str] = (),
        strategy: str = "resolve",
        evaluation: int = EVALUATION_ITEMS,
        candidates: int = MAX_CANDIDATES,
        finalists: int = 0,
        seed: int = 0,
    ) -> PoolSubset:
        """Score every item of the pool, and load the best candidates.

        Args:
            labels: A file of names and classes, or a mapping.
            classes: Names of classes without labels.
            strategy: A look-ahead strategy.
            evaluation: Number of random items that every score sums over.
            candidates: Number of candidates to load.
            finalists: So many of the best are scored again, by all items of the pool, and come
                first.
            seed: Of the evaluation sample.
        """
        chosen = find_strategy(strategy)
        if chosen.name not in STRATEGIES or not chosen.look_ahead:
            able = ", ".join(name for name, s in STRATEGIES.items() if s.look_ahead)
            raise InputError(
                f"strategy is {chosen.name!r}, which cannot score a pool in parts; expected one "
                f"of {able}"
            )
        _check_count("evaluation", evaluation, 1)
        _check_count("candidates", candidates, 1)
        _check_count("finalists", finalists, 0)
        with self._engine() as engine:
            labelled = self.resolve_labels(labels, classes, engine)
            evaluation_positions = self.sample_positions(evaluation, labelled.positions, seed)
            rows, names = self.read_items(
                torch.cat([labelled.positions, evaluation_positions]), engine
            )
            model = self.fit(labelled, rows)
            acquisition = chosen.choose_acquisition(labelled.numbers.tolist())
            assert isinstance(acquisition, str)
            units, start = model.kernel_inputs(rows)
            scoring = ScoringContext(
                model,
                labelled.positions,
                labelled.numbers,
                evaluation_positions,
                units,
                start,
                acquisition,
                candidates,
                self.max_block_items,
                self.device,
            )
            best = self._score_pool(scoring, engine)
            if finalists:
                best = self._rescore_finalists(scoring, best, finalists, engine)
            more = best.positions[~torch.isin(best.positions, evaluation_positions)]
            others, more_names = self.read_items(more, engine)
        subset = torch.cat([labelled.positions, evaluation_positions, more])
        more_units, more_start = model.kernel_inputs(others)
        every, begin = torch.cat([units, more_units]), torch.cat([start, more_start])
        return PoolSubset(
            subset,
            (*names, *more_names),
            every,
            begin,
            labelled,
            len(evaluation_positions),
            model,
            best,
        )

    def _score_pool(self, scoring: ScoringContext, engine: Executor) -> RankedCandidates:
        """Return the best candidates of all partitions."""
        parts = run_tasks(
            engine, "score items", score_part, self._scoring_tasks(scoring, engine), self.progress
        )
        return rank_best(
            torch.cat([b.positions for b in parts]),
            torch.cat([b.scores for b in parts]),
            scoring.max_candidates,
        )

    def _scoring_tasks(self, scoring: ScoringContext, engine: Executor) -> list[Task]:
        handed = engine.scatter(scoring)
        parts = zip(self.entries, self._starts, strict=True)
        return [
            (entry.part.source, entry.rows, (handed, entry, int(start))) for entry, start in parts
        ]

    def _rescore_finalists(
        self, scoring: ScoringContext, best: RankedCandidates, finalists: int, engine: Executor
    ) -> RankedCandidates:
        """Score the first candidates by the whole pool, on the scale of the sample.

        The others follow with their old scores.
        """
        first = best.positions[:finalists]
        rows, _ = self.read_items(first, engine)
        units, start = scoring.model.kernel_inputs(rows)
        before = len(scoring.labelled)
        units, start = (
            torch.cat([scoring.units[:before], units]),
            torch.cat([scoring.start[:before], start]),
        )
        searched = replace(scoring, evaluation=first, units=units, start=start)
        sums = run_tasks(
            engine,
            "judge finalists",
            score_finalists_on_part,
            self._scoring_tasks(searched, engine),
            self.progress,
        )
        whole = torch.stack(sums).sum(0) * (
            len(scoring.evaluation) / (len(self) - len(scoring.labelled))
        )
        chosen = rank_best(first, whole, len(first))
        rest = best.scores[len(first) :].clamp_max(float(whole.min()))
        return RankedCandidates(
            torch.cat([chosen.positions, best.positions[len(first) :]]),
            torch.cat([chosen.scores, rest]),
        )

    def query(
        self,
        n: int = 10,
        labels: Labels = None,
        *,
        mode: str = "greedy",
        finalists: int | None = None,
        evaluation: int | None = None,
        candidates: int = MAX_CANDIDATES,
        seed: int = 0,
        strategy: str = "resolve",
        **how: Any,
    ) -> list[QueryItem]:
        """Return the n items to label next, best first: every item is scored.

        Args:
            n: Number of items.
            labels: A file of names and classes, or a mapping.
            mode: "greedy": one by one among the loaded candidates, so that near-copies lose their
                value. "top": the best scores at once, where the first 1,000 (or 10 n) by a sample
                of 2,000 are scored again by all items of the pool.
            finalists: Another number of these; 0: by the sample only.
            evaluation: As for `select_subset`.
            candidates: As for `select_subset`.
            seed: As for `select_subset`.
            strategy: As for `select_subset`.
            how: Further arguments of `select_subset`.
        """
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise InputError(f"{n!r} items requested; expected a whole number, 1 or more")
        label_guesses = None
        if self.guesses:  # what is wrong with them is found before the pool is scored
            labels, label_guesses = self._read_label_guesses(labels, how.get("classes", ()))
        if mode not in ("greedy", "top") or (finalists and mode != "top"):
            raise InputError(
                f"mode is {mode!r}, finalists {finalists}; expected greedy or top, finalists with "
                "top alone"
            )
        if finalists is None and mode == "top":
            finalists = max(MIN_FINALISTS, FINALISTS_PER_ITEM * n)
            candidates = max(candidates, finalists)
        if evaluation is None:
            evaluation = TOP_EVALUATION_ITEMS if mode == "top" else EVALUATION_ITEMS
        size: dict[str, Any] = {
            "evaluation": evaluation,
            "candidates": candidates,
            "finalists": finalists or 0,
        }
        subset = self.select_subset(labels, seed=seed, strategy=strategy, **size, **how)
        pool_posterior, labelled = subset.build_posterior(), subset.labelled
        left = (
            len(pool_posterior.view.candidates) if mode == "greedy" else len(subset.best.positions)
        )
        if n > left:
            raise InputError(
                f"{n} items requested, but {left} are loaded; expected at most that, or more "
                "candidates"
            )
        picks, scores = subset.best.positions[:n], subset.best.scores[:n]
        if mode == "greedy":
            acquisition = find_strategy(strategy).choose_acquisition(labelled.numbers.tolist())
            picks, scores = pool_posterior.select_batch(
                acquisition, n, make_generator(seed, "pick", len(labelled.positions)), "greedy"
            )
        names = [subset.names[subset.index.row_of(position)] for position in picks.tolist()]
        has_predictions = len(labelled.positions) > 0
        if label_guesses is not None and label_guesses.shape[1]:
            has_predictions = True  # before the first label: the guesses
            p = self._predict_with_guesses(subset, picks, label_guesses)
        else:
            rows = subset.index.rows_of(picks.tolist())
            p = torch.cat([subset.predict_proba(row[None]) for row in rows])
        query_items: list[QueryItem] = []
        records, column = self._records(picks, names), self.manifest.schema.column
        for position, score, record in zip(picks.tolist(), scores.tolist(), records, strict=True):
            sure, guess = p[len(query_items)].max(0)
            label = labelled.classes[int(guess)] if has_predictions else None
            name, text = names[len(query_items)], None
            if self.manifest.schema.kind == "text" and column is not None:
                text = str(record[column] or "")
            sure_of = round(float(sure), 6) if has_predictions else None
            query_items.append(QueryItem(name, position, score, label, sure_of, text, record))
        return query_items

    @property
    def guessers(self) -> tuple[str, ...]:
        """The sources of guesses in the order of `read_guesses`: columns first and then files."""
        return tuple(sorted(self.guesses, key=is_file_of_guesses))

    def read_guesses(
        self,
        items: tuple[Tensor, Sequence[str]],
        classes: Sequence[str],
        former: FormerClasses = NO_FORMER_CLASSES,
    ) -> Tensor:
        """Return g − 1/C (q, G·C) about items, of columns first and then of files.

        Args:
            items: Positions (q,) and names of the items.
            classes: The class names.
            former: Former names of classes, which guesses may use.
        """
        positions, ids = items
        columns = tuple(name for name in self.guesses if not is_file_of_guesses(name))
        own = torch.zeros(len(positions), len(columns) * len(classes))
        if columns:
            parts = self.group_by_partition(positions)
            schema, known, names = self.manifest.schema, tuple(classes), dict(former)
            tasks = []
            for p, at in parts.items():
                rows = self.local_rows(p, positions[at])
                arguments = schema, self.entries[p], columns, known, rows, names
                tasks.append((self.entries[p].part.source, len(at), arguments))
            with self._engine() as engine:
                read = run_tasks(engine, "read guesses", read_partition_guesses, tasks)
            for at, here in zip(parts.values(), read, strict=True):
                own[at] = torch.from_numpy(here)
        return torch.cat([own, read_file_guesses(self.guesses, ids, classes, former)], 1)

    def _read_label_guesses(
        self, labels: Labels, classes: Sequence[str]
    ) -> tuple[Labelled, Tensor]:
        """Return the labels and what was guessed about their items, (L, G·C).

        Without labels and classes nothing can be said: (0, 0).
        """
        with self._engine() as engine:
            labelled = self.resolve_labels(labels, classes, engine)
            if not len(labelled.positions):
                known = len(labelled.classes) if len(labelled.classes) > 1 else 0
                return labelled, torch.zeros(0, len(self.guesses) * known)
            _, names = self.read_items(labelled.positions, engine)
        items = (labelled.positions, names)
        return labelled, self.read_guesses(items, labelled.classes)

    def _predict_with_guesses(self, subset: PoolSubset, picks: Tensor, said: Tensor) -> Tensor:
        """Return probabilities (n, C) of queried items by the learner that takes the guesses.

        Args:
            subset: The items in memory.
            picks: (n,) positions.
            said: (L, G·C) what was guessed about the labelled items.
        """
        labelled = subset.labelled
        rows = subset.index.rows_of(picks.tolist())
        names = [subset.names[row] for row in rows.tolist()]
        about = self.read_guesses((picks, names), labelled.classes)
        assert isinstance(subset.model, ExactModel)
        units = subset.units[: len(labelled.positions)]
        model, self.source_accuracy = fit_with_guesses(
            subset.model, units, said, labelled.numbers, labelled.find_annotations()
        )
        units = torch.cat([subset.units[rows], about.to(subset.units)], 1)
        return model.predict_proba_units(units, len(labelled.classes) or None)

    def _records(self, positions: Tensor, names: Sequence[str]) -> list[dict[str, Any]]:
        """Return the user's columns of some items, except nested ones, so that they can be labelled
        elsewhere.
        """
        schema = self.manifest.schema
        if schema.kind == "npy" or schema.has_item_files:
            return [{} if schema.kind == "npy" else {FILE_NAME: name} for name in names]
        records: list[dict[str, Any]] = [{}] * len(positions)
        for part, at in self.group_by_partition(positions).items():
            rows = read_rows(schema, self.entries[part].part, self.local_rows(part, positions[at]))
            for where, row in zip(at, rows, strict=True):
                records[where] = row
        return records

    def forecast_error(
        self,
        labels: Labels,
        *,
        classes: Sequence[str] = (),
        evaluation: int = EVALUATION_ITEMS,
        seed: int = 0,
    ) -> ErrorForecast:
        """Estimate the error at a random sample, without test labels, and forecast it."""
        with self._engine() as engine:
            return self._forecast(
                self.resolve_labels(labels, classes, engine), engine, evaluation, seed
            )[0]

    def _forecast(
        self, labelled: Labelled, engine: Executor, evaluation: int, seed: int
    ) -> tuple[ErrorForecast, Model]:
        if not len(labelled.positions):
            raise InputError("no labels; expected some of at least two classes")
        evaluation_positions = self.sample_positions(evaluation, labelled.positions, seed)
        every = torch.cat([labelled.positions, evaluation_positions])
        rows, names = self.read_items(every, engine)
        if self.manifest.schema.network is not None:
            sketched = self._create_sketched_model(labelled).fit(
                rows[: len(labelled.numbers)], labelled.numbers
            )
            return sketched.forecast_error(rows, labelled.numbers), sketched
        if self.guesses:
            guess_rows = self.read_guesses((every, names), labelled.classes)
            rows = torch.cat([rows, guess_rows.to(rows)], 1)
        learner, model = self._fit_exact(labelled, rows, len(self.guesses))
        at = torch.arange(len(labelled.positions))
        return learner.forecast_error(at, labelled.numbers, torch.arange(len(at), len(rows))), model

    def predict(
        self,
        labels: Labels,
        out: str | Path,
        *,
        classes: Sequence[str] = (),
        evaluation: int = EVALUATION_ITEMS,
        seed: int = 0,
        probabilities: bool = False,
    ) -> PoolPredictionSummary:
        """Write class and probability of every item, one Parquet file per partition.

        Columns: id, the user's columns except nested ones, part, row, prediction, probability; with
        `probabilities` also `probability:CLASS` for every class.
        """
        folder = absolute_address(out)
        if self.guesses:
            require_guess_sources(self.guesses, self.manifest.schema, columns_only=True)
        with self._engine() as engine:
            labelled = self.resolve_labels(labels, classes, engine)
            forecast, model = self._forecast(labelled, engine, evaluation, seed)
            handed = engine.scatter(model)
            how = (self.manifest.schema, probabilities, self.device, self.guesses)
            tasks = [
                (
                    entry.part.source,
                    entry.rows,
                    (handed, labelled.classes, entry, f"{folder}/part-{i:06d}.parquet", *how),
                )
                for i, entry in enumerate(self.entries)
            ]
            counts = run_tasks(engine, "predict items", predict_part, tasks, self.progress)
        for name in list_files(folder):  # of an earlier pool with more partitions
            if PREDICTION_FILE.fullmatch(name) and int(name[5:11]) >= len(tasks):
                remove_file(f"{folder}/{name}")
        every = torch.tensor(counts).sum(0).tolist()
        return PoolPredictionSummary(
            folder, dict(zip(labelled.classes, every, strict=True)), forecast
        )


def find_names(entry: PartitionEntry, wanted: Sequence[str]) -> list[tuple[str, int]]:
    """Return which of these names a partition has, and in which rows (a task)."""
    searched = set(wanted)
    return [(name, row) for row, name in enumerate(read_ids(entry)) if name in searched]


def _check_count(name: str, value: object, least: int) -> None:
    """Raise unless a number of items is whole and large enough."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"{name} is {value!r}; expected {least} or more")
