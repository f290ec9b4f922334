"""The page on a pool of millions: it holds what matters of it, and is exact among that.

It begins with a random sample, which every score sums over. The whole pool is scored beside it, by
local processes or a cluster, at the beginning and after every so many labels; the best candidates
join what the page holds. Items never leave it, so that positions on the page stay, and all that is
held is in play.
"""

import hashlib
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelahead.data import Data
from labelahead.data.dataset import Rows, UnreadableImagesError, as_positions, check_image_size
from labelahead.data.folder import decode_square, decode_whole
from labelahead.data.records import FILE_NAME, Records
from labelahead.errors import InputError, LabelaheadError
from labelahead.inference.exact import ExactModel
from labelahead.outofcore import LargePool
from labelahead.outofcore.addresses import open_file
from labelahead.outofcore.execution import Executor, InProcess, connect_executor, run_tasks
from labelahead.outofcore.partitions import TEXT_COLUMN_NAMES, file_address, read_rows
from labelahead.outofcore.pool import Labelled
from labelahead.server.items import StoredPictures
from labelahead.server.refresh import TrainingRequest, refresh_snapshot
from labelahead.server.service import LabellingService
from labelahead.server.snapshot import Snapshot, save_snapshot
from labelahead.server.snapshot_builder import MAX_ACTIVE_ITEMS, ProgressCallback, compute_map

__all__ = ["LargePoolWorker", "PoolPictures"]

SAMPLE_ITEMS, CANDIDATES_PER_SCORING = (
    1000,
    500,
)  # random items that scores sum over; the best ones that join at each scoring


class PoolPictures(StoredPictures):
    """Pictures of the pool by position on the page, read where they lie."""

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
        """The whole picture."""
        return self._read(position, lambda file: decode_whole(file, size))  # type: ignore[no-any-return]

    def content_hash(self) -> str:
        """Where they are: the pool is too large to be read."""
        return self.root

    def address(self, position: int) -> str:
        """Where a picture is."""
        return file_address(self.root, self.names[position])

    def file(self, position: int) -> bytes:
        """The picture's file as it is."""
        return bytes(self._read(position, lambda file: file.read()))

    def _read(self, position: int, read: Callable[[Any], Any]) -> Any:
        try:
            with open_file(self.address(position)) as file:
                return read(file)
        except Exception as error:  # Pillow raises nearly anything, storage far away the rest
            raise UnreadableImagesError(
                f"{self.names[position]} cannot be read: {error}", {position: str(error)}
            ) from error


class LargePoolWorker:
    """What the page holds of a large pool; in place of the process that looks at items and trains.

    recorded: names of what it held before, which it holds again. executor: as `scale.connect_executor` takes
    it.
    """

    def __init__(
        self,
        store: str,
        folder: Path,
        recorded: Sequence[str] = (),
        *,
        executor: Any = None,
        classes: Sequence[str] = (),
        strategy: str = "resolve",
        seed: int = 0,
    ) -> None:
        self.pool, self.folder, self.strategy, self.seed = LargePool(store), folder, strategy, seed
        if self.pool.manifest.reading.network is not None:
            raise InputError(
                f"{store} holds the kernel of a network, and the page learns from embeddings "
                "alone; expected a store "
                "without --model, or ask by `labelahead pool ask`"
            )
        self.service: LabellingService | None = None
        self._executor, self._is_first_run, self._closed = executor, True, False
        self._reader = (
            InProcess() if executor is None else executor
        )  # of some items: no processes are started for that
        self._items_lock = threading.Lock()  # held by whoever takes items in
        with connect_executor(self._reader) as engine:
            if recorded:
                places = self.pool.find_positions(recorded, engine)
                missing_name = next((name for name in recorded if name not in places), None)
                if missing_name is not None:
                    raise InputError(
                        f"{folder} holds labels of {missing_name!r}, which is not in {store}; choose "
                        "another folder, or "
                        "the pool that it was begun with"
                    )
                at = torch.tensor([places[name] for name in recorded])
            else:
                at = self.pool.sample_positions(
                    SAMPLE_ITEMS, torch.zeros(0, dtype=torch.int64), seed
                )
            self.rows, names = self.pool.read_items(at, engine)
            self.positions: list[int] = at.tolist()  # in the pool, by position on the page
            # An item may go by two names, its own and file:row; the record's counts.
            names = list(recorded) or names
            content = self._read_content(at, names, engine)
        said = f"{len(self.pool):,} items; {len(at):,} are held, the best candidates join them"
        none, name = torch.zeros(0, dtype=torch.int64), Path(store).name
        empty = Data(
            name, tuple(classes), none, names, "vector", (said,), None, (), lambda: self.rows
        )
        self.data = self._extend_data(empty, names, content)

    @property
    def random_positions(self) -> range:
        """Positions on the page of the sample that was drawn first, in random order."""
        return range(min(SAMPLE_ITEMS, len(self.pool), len(self.positions)))

    @property
    def embedding(self) -> str:
        """What the items are learnt from."""
        return self.pool.manifest.reading.encoder or "vectors"

    @property
    def fingerprint(self) -> str:
        """Of the pool, whatever is held of it."""
        reading = self.pool.manifest.reading
        return hashlib.sha256(f"{reading.root}|{reading.column}|{reading.id}".encode()).hexdigest()

    def run(
        self,
        order: TrainingRequest,
        tell: ProgressCallback,
        wider: Callable[[Path], None] | None = None,
    ) -> Path:
        """As `Worker.run`: score the pool, hold the best of it.

        wider: is handed at first what is held already.
        """
        assert self.service is not None
        label_state = self.service.label_state
        number = {
            c: i for i, c in enumerate(label_state.active_classes)
        }  # without classes that are no more
        known = sorted(
            label_state.labels, key=self.positions.__getitem__
        )  # in the order of the pool
        at = torch.tensor([self.positions[p] for p in known], dtype=torch.int64)
        numbers = torch.tensor([number[label_state.labels[p]] for p in known], dtype=torch.int64)
        told = Labelled(
            at, numbers, tuple(label_state.classes[c] for c in label_state.active_classes)
        )
        if self._is_first_run and wider is not None:
            model = self.pool.fit(told, self.rows[known])
            assert isinstance(model, ExactModel)
            labelled = set(known)
            wider(
                self._save_snapshot(
                    model, [p for p in self.random_positions if p not in labelled], len(known)
                )
            )
        self._is_first_run = False
        tell("scoring", 0.0)

        def progress(stage: str, done: int, total: int) -> None:
            if self._closed:
                raise LabelaheadError("the page is being closed; labels are safe")
            tell("scoring", done / max(1, total))

        with connect_executor(self._executor) as engine:
            pool = self.pool.with_executor(engine)
            pool.progress = progress
            held = pool.select_subset(
                told,
                strategy=self.strategy,
                evaluation=SAMPLE_ITEMS,
                candidates=CANDIDATES_PER_SCORING,
                seed=self.seed,
            )
            self._add_items(held.positions, engine)
        assert isinstance(held.model, ExactModel)
        place = {p: i for i, p in enumerate(self.positions)}
        sample = held.positions[len(known) : len(known) + held.evaluation].tolist()
        return self._save_snapshot(held.model, [place[p] for p in sample if p in place], len(known))

    def connect(self, service: LabellingService, names: Collection[str] = ()) -> None:
        """Grow with these items from now on. names: to hold too, as far as the pool has them."""
        self.service = service
        self.add_items(self.find_positions(names).values())

    def find_positions(self, names: Collection[str]) -> dict[str, int]:
        """Where in the pool items of these names are, held or not; those that there are."""
        if not names:
            return {}
        with connect_executor(self._reader) as engine:
            return self.pool.find_positions(list(names), engine)

    def add_items(self, places: Collection[int]) -> None:
        """Hold the items at these places in the pool too, as far as there is room."""
        if not set(places).issubset(self.positions):
            with connect_executor(self._reader) as engine:
                self._add_items(torch.tensor(list(places), dtype=torch.int64), engine)

    def stop(self) -> None:
        """There is no process between two scorings."""

    def close(self) -> None:
        """A scoring that is under way ends after the part that it is at."""
        self._closed = True

    def _save_snapshot(self, model: ExactModel, sample: Sequence[int], scored: int) -> Path:
        """A file of what is held, before any label.

        sample: random items without a label, which scores sum over.
        """
        first = torch.tensor(sample, dtype=torch.int64)
        every = torch.arange(len(self.positions))
        points = torch.cat([first, every[~torch.isin(every, first)]])
        units, weights = model.normalise_rows(self.rows[points]), model.get_mixture()
        facts = {"labels": 0, "whole": True, "random": len(first), "scored": scored}
        made = Snapshot(
            round=0,
            points=points,
            outputs=torch.zeros((len(points), 2), dtype=torch.float64),
            kernel=None,
            features=None,
            labels={},
            noise=weights.noise,
            strategy=self.strategy,
            evaluation=max(1, len(first)),
            facts={**facts, "map": compute_map(points, {"features": units})},
            units=units,
            weights=weights.weights,
        )
        path = self.folder / "snapshot-00000.pt"
        save_snapshot(refresh_snapshot(made, TrainingRequest(0, (), 2)), path)
        return path

    def _add_items(self, positions: Tensor, engine: Executor) -> None:
        """Take in what is not held yet, as much as an answer can still move at once."""
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
            self.service.extend_items(data)  # on the disk before it counts
            # Positions last: whoever reads them meanwhile finds a row for each.
            self.rows, self.data, self.positions = (
                torch.cat([self.rows, rows]),
                data,
                [*self.positions, *new],
            )

    def _read_content(
        self, at: Tensor, names: Sequence[str], engine: Executor
    ) -> list[dict[str, Any]]:
        """What people see of the items, but for pictures, which are read when they are looked at."""
        reading, parts = self.pool.manifest.reading, self.pool.group_by_partition(at)
        if reading.kind in ("pictures", "npy"):
            return [{"item": name} for name in names]
        entries = {p: self.pool.entries[p] for p in parts}
        tasks = [
            (
                entries[p].part.source,
                len(some),
                (reading, entries[p].part, self.pool.local_rows(p, at[some])),
            )
            for p, some in parts.items()
        ]
        shown: list[dict[str, Any]] = [{}] * len(at)
        for some, rows in zip(
            parts.values(), run_tasks(engine, "read items", read_rows, tasks), strict=True
        ):
            for place, row in zip(some, rows, strict=True):
                shown[place] = row
        return shown

    def _extend_data(
        self, before: Data, names: Sequence[str], content: list[dict[str, Any]]
    ) -> Data:
        """All that is held, as any data set; new items follow the old ones."""
        reading = self.pool.manifest.reading
        if reading.kind == "pictures":
            photos, files = (
                PoolPictures(reading.root, tuple(names)),
                Records({FILE_NAME: list(names)}),
            )
            return replace(before, ids=tuple(names), images=photos, records=files)
        old, there = (
            before.rows.columns if before.rows is not None else {},
            len(names) - len(content),
        )
        every = dict.fromkeys(
            [*old, *(name for row in content for name in row)]
        )  # parts may have columns of their own
        columns = {
            name: [*old.get(name, [None] * there), *(row.get(name) for row in content)]
            for name in every
        }
        text = (
            reading.column
            if reading.kind == "text"
            else next((c for c in TEXT_COLUMN_NAMES if c in columns), None)
        )
        records = None if reading.kind == "npy" else Records(columns, reading.id)
        return replace(before, ids=tuple(names), rows=Rows(columns, text), records=records)
