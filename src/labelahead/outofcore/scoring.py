"""Worker tasks: score or predict the items of one partition.

Labelled items L and an evaluation sample E are few, so their posterior is small and is sent to
every worker. A partition is processed in blocks B: K(L, B) and K(B, E) are computed from features,
and the acquisition score is that of a single process, exact for every item given L and E
(`Posterior.with_points`).
"""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from labelahead.acquisition.batch_selection import score_candidates
from labelahead.acquisition.pool_view import view
from labelahead.data.positions import PositionIndex
from labelahead.data.table_writer import merge_columns, probability_column_name
from labelahead.devices import has_float64
from labelahead.errors import import_extra
from labelahead.gp.posterior import Posterior, prior
from labelahead.inference.exact_model import ExactModel
from labelahead.inference.pool_posterior import PosteriorOptions
from labelahead.outofcore.addresses import Array, write_file
from labelahead.outofcore.guesses import read_partition_guesses
from labelahead.outofcore.partitions import PoolSchema, read_partition_records
from labelahead.outofcore.sketched_kernel import SketchedModel
from labelahead.outofcore.store import PartitionEntry, read_blocks, read_ids

__all__ = [
    "Model",
    "RankedCandidates",
    "ScoringContext",
    "posterior_at",
    "predict_part",
    "rank_best",
    "score_finalists_on_part",
    "score_part",
]

# Items per block: 16 MB with 1,000 evaluation points; fewer items with more.
MAX_BLOCK_ITEMS = 4096
MIN_BLOCK_ITEMS = 1024
MAX_BLOCK_PAIRS = MAX_BLOCK_ITEMS * 1024

Model = ExactModel | SketchedModel


@dataclass(frozen=True, eq=False)
class ScoringContext:
    """What every worker needs: the model, its labels and the evaluation sample.

    Positions count along the pool.
    """

    model: Model
    labelled: Tensor  # (L,) positions
    labels: Tensor  # (L,) class numbers
    evaluation: Tensor  # (e,) positions, none of them labelled
    units: Tensor  # (L + e, d)
    start: Tensor  # (L + e, C)
    acquisition: str
    max_candidates: int  # per partition
    max_block_items: int = MAX_BLOCK_ITEMS  # scored at a time
    device: str = "cpu"  # where workers compute

    def to_device(self) -> "ScoringContext":
        """Return the same context with model and features on its device, without float64 the CPU."""
        if not has_float64(torch.device(self.device)):
            return replace(self, device="cpu")
        return replace(
            self,
            model=move_model(self.model, self.device),
            units=self.units.to(self.device),
            start=self.start.to(self.device),
            labels=self.labels.to(self.device),
        )

    def posterior(self) -> Posterior:
        """Return the posterior at the labelled items, then at the evaluation sample."""
        return posterior_at(self.model, self.units, self.start, self.labels)


def move_model(model: Model, device: str) -> Model:
    """Return a model on a device; the given one stays where it is."""
    if device == "cpu":
        return model
    if isinstance(model, SketchedModel):
        return replace(model, weight=model.weight.to(device))
    return deepcopy(model).to(device)


def posterior_at(model: Model, units: Tensor, start: Tensor, labels: Tensor) -> Posterior:
    """Return the posterior at units (n, d), the first of which have these labels (L,)."""
    unconditioned = prior(start, **model.kernel_arguments(units), noise=model.noise)
    if not len(labels):
        return unconditioned
    labelled, noise = torch.arange(len(labels), device=labels.device), None
    if isinstance(model, ExactModel) and model.observations:  # labels of several sources
        options = PosteriorOptions(observations=model.observations)
        numbers = dict(enumerate(labels.tolist()))
        labels, noise = options.make_targets(numbers, unconditioned)
    return unconditioned.condition(labelled, labels, noise)


class RankedCandidates(NamedTuple):
    """Candidates, best first; equal scores are ordered by position."""

    positions: Tensor  # (m,)
    scores: Tensor  # (m,)


def rank_best(positions: Tensor, scores: Tensor, max_candidates: int) -> RankedCandidates:
    """Return the best candidates, independent of their order."""
    order = positions.argsort()
    order = order[torch.sort(scores[order], descending=True, stable=True).indices[:max_candidates]]
    return RankedCandidates(positions[order], scores[order])


def score_part(context: ScoringContext, entry: PartitionEntry, offset: int) -> RankedCandidates:
    """Return the best candidates of a partition whose first item has position `offset` (a task)."""
    context = context.to_device()
    base_posterior, labelled = context.posterior(), len(context.labelled)
    evaluation = torch.arange(labelled, labelled + len(context.evaluation))
    best = RankedCandidates(torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.float64))
    for post, rows, positions in _iterate_posteriors(context, base_posterior, entry, offset):
        if len(rows):
            scores = score_candidates(
                view(post, rows, evaluation, baseline="linearised"), context.acquisition
            ).cpu()
            best = rank_best(
                torch.cat([best.positions, positions]),
                torch.cat([best.scores, scores]),
                context.max_candidates,
            )
    return best


def score_finalists_on_part(context: ScoringContext, entry: PartitionEntry, offset: int) -> Tensor:
    """Return what the items of a partition add to the scores (e,) of `context.evaluation`, the finalists
    (a task).

    All acquisition functions are sums over evaluation points, so the sum over all partitions is the
    score by the whole pool.
    """
    context = context.to_device()
    base_posterior, labelled = context.posterior(), len(context.labelled)
    finalists = torch.arange(labelled, labelled + len(context.evaluation))
    scores = torch.zeros(len(finalists), dtype=torch.float64)
    for post, rows, _ in _iterate_posteriors(context, base_posterior, entry, offset):
        if len(rows):
            scores += score_candidates(
                view(post, finalists, rows, baseline="linearised"), context.acquisition
            ).cpu()
    return scores


def _iterate_posteriors(
    context: ScoringContext, base_posterior: Posterior, entry: PartitionEntry, offset: int
) -> Iterator[tuple[Posterior, Tensor, Tensor]]:
    """Yield, block by block, the posterior, the rows of the unlabelled items in it, and their
    positions.

    An item of the evaluation sample is not added a second time.
    """
    labelled = len(context.labelled)
    size = max(MIN_BLOCK_ITEMS, MAX_BLOCK_PAIRS // max(1, len(context.evaluation)))
    size = min(context.max_block_items, size)
    index = PositionIndex(context.evaluation)
    for start, features in read_blocks(entry, size):
        positions = torch.arange(offset + start, offset + start + len(features))
        sample_rows = index.find_rows(positions)
        is_new = (~torch.isin(positions, context.labelled) & (sample_rows < 0)).nonzero().squeeze(1)
        new_features = _to_tensor(features[is_new.numpy()]).to(context.device)
        units, mean = context.model.kernel_inputs(new_features)
        post = base_posterior.with_points(units, mean.to(context.device))
        is_sampled = (sample_rows >= 0).nonzero().squeeze(1)
        rows = torch.cat(
            [
                labelled + sample_rows[is_sampled],
                torch.arange(len(base_posterior.outputs), len(post.outputs)),
            ]
        )
        yield post, rows, torch.cat([positions[is_sampled], positions[is_new]])


def _to_tensor(features: Array) -> Tensor:
    return torch.from_numpy(np.array(features))  # a copy: buffers of files are read-only


def predict_part(
    model: Model,
    classes: tuple[str, ...],
    entry: PartitionEntry,
    to: str,
    schema: PoolSchema,
    every_class: bool = False,
    device: str = "cpu",
    guesses: tuple[str, ...] = (),
) -> list[int]:
    """Write class and probability of every item of a partition as a Parquet file (a task).

    The file has the user's columns, except nested ones.

    Args:
        model: The fitted model.
        classes: Names of the classes.
        entry: The partition.
        to: Address of the file.
        schema: The schema of the pool.
        every_class: Whether to write the probability of every class.
        device: Where predictions are computed.
        guesses: Columns of guesses, which the model takes.

    Returns:
        The number of items per class.
    """
    arrow, parquet = (
        import_extra(name, "tables", "writing predictions")
        for name in ("pyarrow", "pyarrow.parquet")
    )
    device = device if has_float64(torch.device(device)) else "cpu"
    model = move_model(model, device)
    label_blocks, confidence_blocks, probability_blocks = [], [], []
    guesses_of_part = None
    if guesses:
        guesses_of_part = torch.from_numpy(read_partition_guesses(schema, entry, guesses, classes))
    for begin, features in read_blocks(entry, MAX_BLOCK_ITEMS):
        inputs = _to_tensor(features)
        if guesses_of_part is not None:
            inputs = torch.cat(
                [inputs.to(guesses_of_part), guesses_of_part[begin : begin + len(inputs)]], 1
            )
        probabilities = model.predict_proba(inputs.to(device), len(classes)).cpu()
        maximum = probabilities.max(1)
        label_blocks.append(maximum.indices)
        confidence_blocks.append(maximum.values)
        if every_class:
            probability_blocks.append(probabilities.float())
    labels, rows = torch.cat(label_blocks), np.arange(entry.rows)
    label_names = arrow.DictionaryArray.from_arrays(
        arrow.array(labels.to(torch.int32).numpy()), arrow.array(classes)
    )
    columns = {
        "part": arrow.array([entry.part.source]).take(arrow.array(np.zeros(entry.rows, np.int64))),
        "row": arrow.array(rows + entry.part.start),
        "prediction": label_names,
        "probability": arrow.array(torch.cat(confidence_blocks).float().numpy()),
    }
    if every_class:
        stacked = torch.cat(probability_blocks).numpy()
        columns |= {
            probability_column_name(name): arrow.array(stacked[:, i])
            for i, name in enumerate(classes)
        }
    ids = read_ids(entry)
    table = arrow.table(
        merge_columns(ids, read_partition_records(schema, entry.part, ids), columns)
    )
    write_file(to, lambda file: parquet.write_table(table, file, compression="zstd"))
    return torch.bincount(labels, minlength=len(classes)).tolist()
