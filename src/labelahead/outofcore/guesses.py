"""Guesses about the items of an out-of-core pool: columns of its own files, or a file by item id.

Items are queried as without guesses; predictions start from them (`labelahead.inference.trust`).
Only the guesses about labelled and queried items are read for a query. Predictions of the whole pool
read the columns of each partition together with its features.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from labelahead.data.dataset import Guesses
from labelahead.data.guesses import (
    NO_FORMER_CLASSES,
    FormerClasses,
    find_guesses,
    is_guess_column,
    is_guess_file,
    read_guesses_by_id,
    stack_deviations,
)
from labelahead.data.split import expand_path
from labelahead.errors import InputError, did_you_mean
from labelahead.inference.exact import ExactLearner
from labelahead.inference.exact_model import ExactModel
from labelahead.inference.sources import Annotations, SourceAccuracy
from labelahead.outofcore.addresses import Array
from labelahead.outofcore.partitions import PoolSchema, read_columns_named
from labelahead.outofcore.store import PartitionEntry, read_ids

__all__ = [
    "fit_with_guesses",
    "is_file_of_guesses",
    "read_file_guesses",
    "read_partition_guesses",
    "require_guess_sources",
]

# What a fit sets in a model.
FITTED_BUFFERS = (
    "support",
    "alpha",
    "mixture",
    "variance_scale",
    "trust",
    "sharpness",
    "label_noise",
)


def is_file_of_guesses(name: str) -> bool:
    """Return whether guesses are those of a file, or of a folder of Parquet files."""
    return is_guess_file(name) or (is_guess_column(name) and expand_path(name).is_dir())


def require_guess_sources(
    sources: Sequence[str], schema: PoolSchema, *, columns_only: bool
) -> None:
    """Raise if guesses of this kind cannot be read.

    Args:
        sources: Columns and files.
        schema: The schema of the pool.
        columns_only: Whether files are refused, because guesses about all items are needed.
    """
    if schema.network is not None:
        raise InputError(
            "guesses are prior knowledge of the exact learner, but these features are of a network; "
            "expected features of an encoder, or no guesses"
        )
    if len(set(sources)) < len(sources):
        raise InputError(f"guesses are {', '.join(sources)}; expected each once")
    for name in sources:
        if not (is_guess_column(name) or is_guess_file(name)):
            raise InputError(
                f"guesses is {name!r}; expected a column of the pool, or a file with ids: write what a "
                "model says by `labelahead guess` or `pool predict --probabilities`"
            )
        if columns_only and is_file_of_guesses(name):
            raise InputError(
                f"guesses is the file {name}, which is searched for single items; for predictions of "
                "the whole pool expected a column of the pool's own files"
            )


def read_file_guesses(
    sources: Sequence[str],
    ids: Sequence[str],
    classes: Sequence[str],
    former: FormerClasses = NO_FORMER_CLASSES,
) -> Tensor:
    """Return g − 1/C (q, F·C) of the files among the sources, about items with these ids."""
    files = [name for name in sources if is_file_of_guesses(name)]
    found = [
        Guesses(tuple(classes), read_guesses_by_id(name, ids, classes, former)) for name in files
    ]
    none = torch.zeros(len(ids), 0)
    return stack_deviations(found, tuple(classes)) if found else none


def read_partition_guesses(
    schema: PoolSchema,
    entry: PartitionEntry,
    names: Sequence[str],
    classes: tuple[str, ...],
    rows: Sequence[int] | None = None,
    former: FormerClasses = NO_FORMER_CLASSES,
) -> Array:
    """Return g − 1/C (q, G·C) of columns of a partition, float32 (a task).

    Args:
        schema: The schema of the pool.
        entry: The partition.
        names: The columns.
        classes: The class names.
        rows: Rows of the partition; default: all.
        former: Former names of classes.
    """
    columns = read_columns_named(schema, entry.part, names)
    found = []
    for name in names:
        p = find_guesses(columns, name, classes, entry.part.source, former)
        if p is None:
            raise InputError(
                f"guesses names the column {name!r}, but {entry.part.source} has none of that name; "
                f"{did_you_mean(name, columns)}expected a column of the pool's Parquet files, or a "
                "file of guesses with ids"
            )
        found.append(Guesses(classes, p))
    deviations = stack_deviations(found, classes).numpy()
    if len(deviations) != entry.rows:
        raise InputError(
            f"{entry.part.source} has {len(deviations)} rows, but {len(read_ids(entry))} items were "
            "embedded; expected the same rows as then: embed again"
        )
    return np.asarray(deviations if rows is None else deviations[list(rows)], dtype=np.float32)


def fit_with_guesses(
    model: ExactModel,
    units: Tensor,
    deviations: Tensor,
    labels: Tensor,
    annotations: Annotations | None = None,
) -> tuple[ExactModel, Mapping[str, SourceAccuracy]]:
    """Fit the labels by the exact learner with guesses.

    Args:
        model: The model without guesses; only its preprocessing counts.
        units: (L, d) unit rows of the labelled items.
        deviations: (L, G·C) their guesses.
        labels: (L,) class numbers.
        annotations: All labels by source, with the rows of the items as positions.

    Returns:
        The model of inputs with the columns of the guesses, and how often each source is right.
    """
    guessers = deviations.shape[1] // model.classes
    blank = model.without_labels().with_guessers(guessers, model.classes)
    learner = ExactLearner(
        torch.cat([units, deviations.to(units)], 1),
        ExactModel.for_unit_rows(model.classes, guessers=guessers),
        annotations=annotations,
    )
    fitted = learner.fit(torch.arange(len(labels)), labels).kernel_model
    for name in FITTED_BUFFERS:
        setattr(blank, name, getattr(fitted, name))
    return blank.eval(), learner.source_accuracy()
