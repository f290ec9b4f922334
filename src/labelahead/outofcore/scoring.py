"""What a worker does with one part, given what is known: score its items, or predict them.

Labelled items L and an evaluation sample E are few, so their posterior is small and goes to every
worker. A part passes by in blocks B: K(L, B) and K(B, E) are worked out from features, and the
criterion is that of a single process, exact for every item given L and E (`Posterior.with_points`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from labelahead.acquisition.batch import score_candidates
from labelahead.acquisition.view import view
from labelahead.data.table_writer import merge_columns, probability_column_name
from labelahead.errors import import_extra
from labelahead.gp.posterior import Posterior, prior
from labelahead.inference.exact import ExactModel, mixture_kernel
from labelahead.outofcore.addresses import Array, write_file
from labelahead.outofcore.partitions import PoolSchema, read_partition_records
from labelahead.outofcore.sketched_kernel import SketchedModel
from labelahead.outofcore.store import PartitionEntry, read_blocks, read_ids

__all__ = [
    "Model",
    "RankedCandidates",
    "ScoringContext",
    "kernel_inputs",
    "posterior_at",
    "predict_part",
    "prior_at",
    "rank_best",
    "score_finalists_on_part",
    "score_part",
]

MAX_BLOCK_ITEMS, MIN_BLOCK_ITEMS = (
    4096,
    1024,
)  # items scored at a time: 16 MB beside 1,000 evaluation points, fewer beside more
MAX_BLOCK_PAIRS = MAX_BLOCK_ITEMS * 1024

Model = ExactModel | SketchedModel


def kernel_inputs(model: Model, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows (n, d) of a store as the kernel has them, and where the posterior begins there (n, C)."""
    if isinstance(model, SketchedModel):
        return model.seen(rows)
    return model.normalise_rows(rows), torch.full(
        (len(rows), model.classes), 1 / model.classes, dtype=torch.float64
    )


def prior_at(model: Model, units: Tensor, start: Tensor) -> Posterior:
    """Without a label."""
    if isinstance(model, SketchedModel):
        return model.prior(units, start)
    mixture = model.get_mixture()
    return prior(start, mixture_kernel(units, mixture.weights), noise=mixture.noise)


@dataclass(frozen=True, eq=False)
class ScoringContext:
    """What every worker is told.

    The learner, its labels, the evaluation sample. Positions count along the pool.
    """

    model: Model
    labelled: Tensor  # (L,) positions
    labels: Tensor  # (L,) class numbers
    evaluation: Tensor  # (e,) positions, none of them labelled
    units: Tensor  # (L + e, d)
    start: Tensor  # (L + e, C)
    acquisition: str
    max_candidates: int  # candidates that a part hands in

    def posterior(self) -> Posterior:
        """At the labelled items, then the evaluation sample."""
        return posterior_at(self.model, self.units, self.start, self.labels)


def posterior_at(model: Model, units: Tensor, start: Tensor, labels: Tensor) -> Posterior:
    """At units (n, d), the first of which have these labels (L,)."""
    before = prior_at(model, units, start)
    return before.condition(torch.arange(len(labels)), labels) if len(labels) else before


class RankedCandidates(NamedTuple):
    """Candidates, best first, and of two that are level the one that stands first in the pool."""

    positions: Tensor  # (m,)
    scores: Tensor  # (m,)


def rank_best(positions: Tensor, scores: Tensor, max_candidates: int) -> RankedCandidates:
    """The best of them, whatever order they come in."""
    order = positions.argsort()
    order = order[torch.sort(scores[order], descending=True, stable=True).indices[:max_candidates]]
    return RankedCandidates(positions[order], scores[order])


def score_part(known: ScoringContext, entry: PartitionEntry, offset: int) -> RankedCandidates:
    """A task: the best candidates of a part whose first item stands at position `offset`."""
    few, labelled = known.posterior(), len(known.labelled)
    evaluation = torch.arange(labelled, labelled + len(known.evaluation))
    best = RankedCandidates(torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.float64))
    for post, here, positions in _iterate_posteriors(known, few, entry, offset):
        if len(here):
            scores = score_candidates(
                view(post, here, evaluation, baseline="linearised"), known.acquisition
            )
            best = rank_best(
                torch.cat([best.positions, positions]),
                torch.cat([best.scores, scores]),
                known.max_candidates,
            )
    return best


def score_finalists_on_part(known: ScoringContext, entry: PartitionEntry, offset: int) -> Tensor:
    """A task: (e,) what the items of a part add to the scores of known.evaluation, which are
    candidates here.

    All criteria are sums over evaluation points; so the sum over all parts is the score by the
    whole pool.
    """
    few, labelled = known.posterior(), len(known.labelled)
    finalists = torch.arange(labelled, labelled + len(known.evaluation))
    scores = torch.zeros(len(finalists), dtype=torch.float64)
    for post, here, _ in _iterate_posteriors(known, few, entry, offset):
        if len(here):
            scores += score_candidates(
                view(post, finalists, here, baseline="linearised"), known.acquisition
            )
    return scores


def _iterate_posteriors(
    known: ScoringContext, few: Posterior, entry: PartitionEntry, offset: int
) -> Iterator[tuple[Posterior, Tensor, Tensor]]:
    """Block by block of a part: the posterior there, where in it the unlabelled items are, and
    their positions.

    One that is known already is the point that it is among those known.
    """
    labelled = len(known.labelled)
    size = min(
        MAX_BLOCK_ITEMS, max(MIN_BLOCK_ITEMS, MAX_BLOCK_PAIRS // max(1, len(known.evaluation)))
    )
    for start, features in read_blocks(entry, size):
        positions = torch.arange(offset + start, offset + start + len(features))
        place = _match_positions(positions, known.evaluation)
        fresh = (~torch.isin(positions, known.labelled) & (place < 0)).nonzero().squeeze(1)
        post = few.with_points(*kernel_inputs(known.model, _to_tensor(features[fresh.numpy()])))
        again = (place >= 0).nonzero().squeeze(1)
        here = torch.cat(
            [labelled + place[again], torch.arange(len(few.outputs), len(post.outputs))]
        )
        yield post, here, torch.cat([positions[again], positions[fresh]])


def _match_positions(positions: Tensor, sample: Tensor) -> Tensor:
    """(q,) which of the sample each position is; −1 if it is none."""
    if not len(sample):
        return torch.full_like(positions, -1)
    ordered, order = sample.sort()
    place = torch.searchsorted(ordered, positions).clamp_max_(len(sample) - 1)
    return torch.where(ordered[place] == positions, order[place], -1)


def _to_tensor(features: Array) -> Tensor:
    return torch.from_numpy(np.array(features))  # a copy: what was read cannot be written to


def predict_part(
    model: Model,
    classes: tuple[str, ...],
    entry: PartitionEntry,
    to: str,
    reading: PoolSchema,
    every_class: bool = False,
) -> list[int]:
    """A task: class and probability of every item of a part, as a Parquet file; how many are of
    each class.

    The file has the user's columns, but lists and the like. every_class: also the probability of
    every class.
    """
    arrow, parquet = (
        import_extra(name, "tables", "writing predictions")
        for name in ("pyarrow", "pyarrow.parquet")
    )
    guesses, sure, every = [], [], []
    for _, features in read_blocks(entry, MAX_BLOCK_ITEMS):
        p = model.predict_proba(_to_tensor(features), len(classes))
        best = p.max(1)
        guesses.append(best.indices)
        sure.append(best.values)
        if every_class:
            every.append(p.float())
    label, rows = torch.cat(guesses), np.arange(entry.rows)
    names = arrow.DictionaryArray.from_arrays(
        arrow.array(label.to(torch.int32).numpy()), arrow.array(classes)
    )
    ours = {
        "part": arrow.array([entry.part.source]).take(arrow.array(np.zeros(entry.rows, np.int64))),
        "row": arrow.array(rows + entry.part.start),
        "prediction": names,
        "probability": arrow.array(torch.cat(sure).float().numpy()),
    }
    if every_class:
        whole = torch.cat(every).numpy()
        ours |= {
            probability_column_name(name): arrow.array(whole[:, i])
            for i, name in enumerate(classes)
        }
    ids = read_ids(entry)
    table = arrow.table(merge_columns(ids, read_partition_records(reading, entry.part, ids), ours))
    write_file(to, lambda file: parquet.write_table(table, file, compression="zstd"))
    return torch.bincount(label, minlength=len(classes)).tolist()
