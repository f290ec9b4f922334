"""The page on an out-of-core pool: it loads a subset, and is exact on that subset.

The subset starts as a random sample, which is the evaluation set. The whole pool is scored by local
processes or a cluster at the start and after every `refresh_every` labels; the best candidates are
added to the subset. Items are never removed, so that positions on the page do not change.
"""

import hashlib
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from labelahead.data import Data
from labelahead.data.dataset import Guesses, Rows, as_positions, check_image_size
from labelahead.data.file_tree import UnreadableItemsError
from labelahead.data.folder import decode_square, decode_whole
from labelahead.data.positions import PositionIndex
from labelahead.data.records import FILE_NAME, Records
from labelahead.data.sounds import SoundFiles
from labelahead.errors import InputError, LabelaheadError
from labelahead.inference.exact_model import ExactModel
from labelahead.inference.sources import Annotations
from labelahead.learner.config import Campaign
from labelahead.learner.guessers import describe_guesser
from labelahead.outofcore import LargePool
from labelahead.outofcore.addresses import open_file
from labelahead.outofcore.execution import Executor, InProcess, connect_executor, run_tasks
from labelahead.outofcore.partitions import TEXT_COLUMN_NAMES, PoolFiles, file_address, read_rows
from labelahead.outofcore.pool import Labelled
from labelahead.server.exact_snapshot import ExactSnapshot
from labelahead.server.items import StoredImages
from labelahead.server.label_state import LabelState
from labelahead.server.service import LabellingService
from labelahead.server.snapshot import PoolFacts, TrainingRequest
from labelahead.server.snapshot_builder import (
    MAX_ACTIVE_ITEMS,
    ProgressCallback,
    compute_map,
    make_guess_key,
    spread_columns,
)
from labelahead.server.snapshot_files import save_snapshot

__all__ = ["LargePoolWorker", "PoolImages", "PoolSizes"]


@dataclass(frozen=True)
class PoolSizes:
    """How many items of the pool the page holds.

    Attributes:
        sample: Random items that scores sum over.
        candidates: The best ones that join at each scoring.
    """

    sample: int = 1000
    candidates: int = 500


@dataclass(frozen=True, eq=False)
class PoolGuesses:
    """Guesses about the loaded items.

    Attributes:
        deviations: (n, G, C) g − 1/C by class number of the page; None without guesses.
        names: Of the guessers, for people.
        key: What they depend on (`make_guess_key`).
    """

    deviations: Tensor | None = None
    names: tuple[str, ...] = ()
    key: str = ""

    def take(self, points: Tensor) -> Tensor | None:
        """Return the deviations of some items; 0 for items that were loaded since."""
        if self.deviations is None:
            return None
        more = max(0, len(points) - len(self.deviations))
        return pad(self.deviations, (0, 0, 0, 0, 0, more))[points]


class PoolImages(StoredImages):
    """Pictures of the pool by position on the page, read from their storage."""

    def __init__(self, root: str, names: Sequence[str]) -> None:
        self.root, self.names = root, names

    def batch(self, positions: Tensor, size: int) -> Tensor:
        """(q, 3, size, size)."""
        check_image_size(size)
        at = as_positions(positions, len(self.names), "positions")
        return torch.from_numpy(
            np.stack([self._read(int(i), lambda file: decode_square(file, size)) for i in at])
        )

    def render_picture(self, position: int, size: int) -> np.ndarray[Any, Any]:
        """Return the whole picture."""
        return self._read(position, lambda file: decode_whole(file, size))  # type: ignore[no-any-return]

    def content_hash(self) -> str:
        """Return the root address, since the pool is too large to be hashed."""
        return self.root

    def address(self, position: int) -> str:
        """Return the address of a picture."""
        return file_address(self.root, self.names[position])

    def file(self, position: int) -> bytes:
        """Return the unmodified content of the picture's file."""
        return bytes(self._read(position, lambda file: file.read()))

    def _read(self, position: int, read: Callable[[Any], Any]) -> Any:
        try:
            with open_file(self.address(position)) as file:
                return read(file)
        except Exception as error:  # Pillow and remote storage raise many types of errors
            raise UnreadableItemsError(
                f"{self.names[position]} cannot be read: {error}", {position: str(error)}
            ) from error


class LargePoolWorker:
    """Subset of an out-of-core pool for the page; used instead of `Worker`.

    Args:
        campaign: The configuration: the store, its guesses, the strategy and the seed.
        folder: Of the session.
        recorded: Names of what it held before, which it holds again.
        executor: As `outofcore.connect_executor` takes it.
        classes: The class names.
        sizes: How many items it holds.
    """

    def __init__(
        self,
        campaign: Campaign,
        folder: Path,
        recorded: Sequence[str] = (),
        *,
        executor: Any = None,
        classes: Sequence[str] = (),
        sizes: PoolSizes | None = None,
    ) -> None:
        store, self.source, self.seed = campaign.data.name, campaign.data, campaign.seed
        self.sizes = sizes or PoolSizes()
        self.pool = LargePool(store, guesses=self.source.guesses)
        self.folder = folder
        self.strategy = str(campaign.asking.strategy)
        if self.pool.manifest.schema.network is not None:
            raise InputError(
                f"{store} contains the kernel of a network, and the page supports embeddings "
                "only; expected a store "
                "without --model, or query it with `labelahead pool query`"
            )
        self.service: LabellingService | None = None
        self._executor, self._is_first_run, self._closed = executor, True, False
        self._reader = (
            InProcess() if executor is None else executor
        )  # of some items: no processes are started for that
        self._items_lock = threading.Lock()  # held while items are added
        with connect_executor(self._reader) as engine:
            if recorded:
                places = self.pool.find_positions(recorded, engine)
                missing_name = next((name for name in recorded if name not in places), None)
                if missing_name is not None:
                    raise InputError(
                        f"{folder} holds labels of {missing_name!r}, which is not in {store}; "
                        "choose another folder, or the pool that the session was started with"
                    )
                at = torch.tensor([places[name] for name in recorded])
            else:
                nothing = torch.zeros(0, dtype=torch.int64)
                at = self.pool.sample_positions(self.sizes.sample, nothing, self.seed)
            self.rows, names = self.pool.read_items(at, engine)
            self.positions: list[int] = at.tolist()  # in the pool, by position on the page
            # An item may have two names, its id and file:row; the journal's name is used.
            names = list(recorded) or names
            content = self._read_content(at, names, engine)
        note = (
            f"{len(self.pool):,} items; {len(at):,} are loaded, and the best candidates are added"
        )
        none, name = torch.zeros(0, dtype=torch.int64), Path(store).name
        empty = Data(
            name, tuple(classes), none, names, "vector", (note,), None, (), lambda: self.rows
        )
        self.data = self._extend_data(empty, names, content)

    @property
    def random_positions(self) -> range:
        """Return the positions on the page of the initial random sample."""
        return range(min(self.sizes.sample, len(self.pool), len(self.positions)))

    @property
    def embedding(self) -> str:
        """Return the name of the encoder."""
        return self.pool.manifest.schema.encoder or "vectors"

    @property
    def fingerprint(self) -> str:
        """Return a hash of the pool's source, independent of the loaded subset."""
        schema = self.pool.manifest.schema
        return hashlib.sha256(f"{schema.root}|{schema.column}|{schema.id}".encode()).hexdigest()

    def run(
        self,
        request: TrainingRequest,
        on_progress: ProgressCallback,
        on_partial_snapshot: Callable[[Path], None] | None = None,
    ) -> Path:
        """Score the pool and add the best candidates, with the interface of `Worker.run`.

        on_partial_snapshot: called in the first run with a snapshot of the items that are already loaded.
        """
        assert self.service is not None
        label_state = self.service.label_state
        number = {
            c: i for i, c in enumerate(label_state.active_classes)
        }  # without merged and removed classes
        # In the order of the pool. Items of no class do not count in the scoring.
        classified = (p for p, c in label_state.labels.items() if c in number)
        known = sorted(classified, key=self.positions.__getitem__)
        at = torch.tensor([self.positions[p] for p in known], dtype=torch.int64)
        numbers = torch.tensor([number[label_state.labels[p]] for p in known], dtype=torch.int64)
        said = [
            (self.positions[p], number[c], who)
            for p, c, who in label_state.list_annotations()
            if c in number
        ]
        names = tuple(label_state.classes[c] for c in label_state.active_classes)
        annotations = Annotations.from_rows(said) if said else None
        labelled_items = Labelled(at, numbers, names, annotations)
        if self._is_first_run and on_partial_snapshot is not None:
            model = self.pool.fit(labelled_items, self.rows[known])
            assert isinstance(model, ExactModel)
            labelled = label_state.labels.keys()
            with connect_executor(self._reader) as engine:
                guesses = self._read_guesses(label_state, engine)
            first = [p for p in self.random_positions if p not in labelled]
            on_partial_snapshot(self._save_snapshot(model, first, len(labelled), guesses))
        self._is_first_run = False
        on_progress("scoring", 0.0)

        def progress(stage: str, done: int, total: int) -> None:
            if self._closed:
                raise LabelaheadError("the page is being closed; labels are safe")
            on_progress("scoring", done / max(1, total))

        with connect_executor(self._executor) as engine:
            pool = self.pool.with_executor(engine)
            pool.progress = progress
            subset = pool.select_subset(
                labelled_items,
                strategy=self.strategy,
                evaluation=self.sizes.sample,
                candidates=self.sizes.candidates,
                seed=self.seed,
            )
            self._add_items(subset.positions, engine)
            guesses = self._read_guesses(label_state, engine)
        assert isinstance(subset.model, ExactModel)
        index = PositionIndex(torch.tensor(self.positions))
        rows = index.find_rows(subset.positions[len(known) : len(known) + subset.evaluation])
        return self._save_snapshot(
            subset.model, rows[rows >= 0].tolist(), len(label_state.labels), guesses
        )

    def _read_guesses(self, label_state: LabelState, engine: Executor) -> PoolGuesses:
        """Read the guesses about the loaded items, and show them on the page."""
        active = label_state.active_names
        if not self.source.guesses or len(active) < 2:
            return PoolGuesses()
        assert self.service is not None
        with self._items_lock:
            items = torch.tensor(self.positions), self.data.ids
            pool, former = self.pool.with_executor(engine), label_state.former_classes
            deviations = pool.read_guesses(items, active, former)
            blocks = deviations.view(len(self.positions), -1, len(active))
            given = blocks.abs().sum(2, keepdim=True) > 0
            p = torch.where(given, blocks + 1 / len(active), 0.0)
            guesses = {name: Guesses(active, p[:, j]) for j, name in enumerate(self.pool.guessers)}
            self.data = replace(self.data, guesses=guesses)
            self.service.extend_items(self.data)
        numbers = label_state.active_classes
        return PoolGuesses(
            spread_columns(blocks, numbers),
            tuple(map(describe_guesser, self.pool.guessers)),
            make_guess_key(self.source, active, numbers, former),
        )

    def connect(self, service: LabellingService, names: Collection[str] = ()) -> None:
        """Set the service to add items to. names: further items to load, if they are in the pool."""
        self.service = service
        self.add_items(self.find_positions(names).values())

    def find_positions(self, names: Collection[str]) -> dict[str, int]:
        """Return the pool positions of items by name; names that are not in the pool are left out."""
        if not names:
            return {}
        with connect_executor(self._reader) as engine:
            return self.pool.find_positions(list(names), engine)

    def add_items(self, places: Collection[int]) -> None:
        """Load the items at these pool positions, up to the maximum number of items."""
        if not set(places).issubset(self.positions):
            with connect_executor(self._reader) as engine:
                self._add_items(torch.tensor(list(places), dtype=torch.int64), engine)

    def stop(self) -> None:
        """Do nothing: there is no process between two scorings."""

    def close(self) -> None:
        """Stop a running scoring after its current partition."""
        self._closed = True

    def _save_snapshot(
        self, model: ExactModel, sample: Sequence[int], scored: int, guesses: PoolGuesses
    ) -> Path:
        """Save a snapshot of the loaded items without labels, and return its path.

        Args:
            model: The kernel and the preprocessing.
            sample: Random unlabelled items, the evaluation set.
            scored: Number of labels at the scoring.
            guesses: About the loaded items.
        """
        first = torch.tensor(sample, dtype=torch.int64)
        every = torch.arange(len(self.positions))
        points = torch.cat([first, every[~torch.isin(every, first)]])
        units, weights = model.normalise_rows(self.rows[points]), model.get_mixture()
        made = ExactSnapshot(
            round=0,
            points=points,
            labels={},
            noise=weights.noise,
            strategy=self.strategy,
            evaluation=max(1, len(first)),
            pool_facts=PoolFacts(
                compute_map(points, {"features": units}),
                random_points=len(first),
                labels_at_scoring=scored,
                guess_key=guesses.key,
            ),
            units=units,
            weights=weights.weights,
            guesses=guesses.take(points),
            guessers=guesses.names,
        )
        path = self.folder / "snapshot-00000.pt"
        save_snapshot(made, path)
        return path

    def _add_items(self, positions: Tensor, engine: Executor) -> None:
        """Load items that are not loaded yet, up to `MAX_ACTIVE_ITEMS`."""
        assert self.service is not None
        with self._items_lock:
            known = set(self.positions)
            new = [p for p in dict.fromkeys(positions.tolist()) if p not in known][
                : max(0, MAX_ACTIVE_ITEMS - len(known))
            ]
            if not new:
                return
            at = torch.tensor(new)
            rows, names = self.pool.read_items(at, engine)
            data = self._extend_data(
                self.data, [*self.data.ids, *names], self._read_content(at, names, engine)
            )
            data = replace(
                data,
                guesses={  # those about new items are read at the next scoring
                    name: replace(said, probabilities=pad(said.probabilities, (0, 0, 0, len(new))))
                    for name, said in data.guesses.items()
                },
            )
            self.service.extend_items(data)  # stored durably before it is used
            # Positions are replaced last, so that a concurrent reader finds a row for each.
            self.rows, self.data, self.positions = (
                torch.cat([self.rows, rows]),
                data,
                [*self.positions, *new],
            )

    def _read_content(
        self, at: Tensor, names: Sequence[str], engine: Executor
    ) -> list[dict[str, Any]]:
        """Read the content of items, except pictures and sounds, which are read when shown."""
        schema, parts = self.pool.manifest.schema, self.pool.group_by_partition(at)
        if schema.kind == "npy" or schema.has_item_files:
            return [{"item": name} for name in names]
        entries = {p: self.pool.entries[p] for p in parts}
        tasks = [
            (
                entries[p].part.source,
                len(some),
                (schema, entries[p].part, self.pool.local_rows(p, at[some])),
            )
            for p, some in parts.items()
        ]
        shown: list[dict[str, Any]] = [{}] * len(at)  # guesses are hidden until the answer
        for some, rows in zip(
            parts.values(), run_tasks(engine, "read items", read_rows, tasks), strict=True
        ):
            for place, row in zip(some, rows, strict=True):
                shown[place] = {
                    name: value for name, value in row.items() if not self._is_guess(name)
                }
        return shown

    def _is_guess(self, column: str) -> bool:
        """Return whether a column of the pool holds guesses: NAME, or NAME:CLASS."""
        return any(column == name or column.startswith(f"{name}:") for name in self.source.guesses)

    def _extend_data(self, data: Data, names: Sequence[str], content: list[dict[str, Any]]) -> Data:
        """Return all loaded items as a data set, new items last."""
        schema = self.pool.manifest.schema
        if schema.kind == "pictures":
            photos, files = (
                PoolImages(schema.root, tuple(names)),
                Records({FILE_NAME: list(names)}),
            )
            return replace(data, ids=tuple(names), images=photos, records=files)
        if schema.kind == "sounds":
            sounds = SoundFiles(PoolFiles(schema.root), tuple(names))  # type: ignore[arg-type]
            files = Records({FILE_NAME: list(names)})
            return replace(data, ids=tuple(names), sounds=sounds, records=files)
        old, there = (data.rows.columns if data.rows is not None else {}, len(names) - len(content))
        every = dict.fromkeys(
            [*old, *(name for row in content for name in row)]
        )  # partitions may have different columns
        columns = {
            name: [*old.get(name, [None] * there), *(row.get(name) for row in content)]
            for name in every
        }
        text = (
            schema.column
            if schema.kind == "text"
            else next((c for c in TEXT_COLUMN_NAMES if c in columns), None)
        )
        records = None if schema.kind == "npy" else Records(columns, schema.id)
        return replace(data, ids=tuple(names), rows=Rows(columns, text), records=records)
