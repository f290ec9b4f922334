"""The page on a pool of millions: it holds what matters of it, and is exact among that.

It begins with a random sample, which every score sums over. The whole pool is scored beside it, by local processes or a
cluster, at the beginning and after every so many labels; the best candidates join what the page holds. Items never
leave it, so that positions on the page stay: it grows by some hundreds each time.
"""

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelahead.data import Data
from labelahead.data.dataset import Images, Rows, as_positions, check_size
from labelahead.data.folder import decode, decode_whole
from labelahead.errors import InputError
from labelahead.scale import LargePool
from labelahead.scale.execution import at_work, each
from labelahead.scale.parts import TEXTS, address, contents
from labelahead.scale.places import opened
from labelahead.scale.pool import Labelled
from labelahead.scale.store import is_store
from labelahead.web.assignment import Assignment
from labelahead.web.refresh import Order, refreshed
from labelahead.web.snapshot import Snapshot, save_snapshot
from labelahead.web.worker import Tell, mapped

__all__ = ["Holding", "is_store"]

SAMPLE, CANDIDATES = 1000, 500


class Pictures(Images):
    """Pictures of the pool by position on the page, read where they lie."""

    def __init__(self, root: str, names: Sequence[str]) -> None:
        self.root, self.names = root, names

    def batch(self, positions: Tensor, size: int) -> Tensor:
        """(q, 3, size, size)."""
        check_size(size)
        at = as_positions(positions, len(self.names), "positions")
        return torch.from_numpy(np.stack([self._read(int(i), lambda file: decode(file, size)) for i in at]))

    def picture(self, position: int, size: int) -> np.ndarray[Any, Any]:
        """The whole picture."""
        return self._read(position, lambda file: decode_whole(file, size))  # type: ignore[no-any-return]

    def content(self) -> str:
        """Where they are: the pool is too large to be read."""
        return self.root

    def _read(self, position: int, read: Callable[[Any], Any]) -> Any:
        with opened(address(self.root, self.names[position])) as file:
            return read(file)


class Holding:
    """What the page holds of a large pool; in place of the process that trains.

    every: labels between two scorings of the whole pool. folder: of the labels; what it held before, it holds again.
    """

    def __init__(
        self,
        store: str,
        folder: Path,
        *,
        executor: Any = None,
        classes: Sequence[str] = (),
        strategy: str = "resolve",
        seed: int = 0,
        every: int = 50,
    ) -> None:
        if every < 1:
            raise InputError(f"refresh-every is {every}; expected 1 or more")
        self.pool, self.folder, self.strategy, self.seed, self.every = LargePool(store), folder, strategy, seed, every
        self._executor, self._classes, self._scored = executor, tuple(classes), 0
        self.assignment: Assignment | None = None
        with at_work(executor) as engine:
            before = _stored(folder / "labels.db")
            if before:
                places = self.pool.find(before, engine)
                lost = next((name for name in before if name not in places), None)
                if lost is not None:
                    raise InputError(
                        f"{folder} holds labels of {lost!r}, which is not in {store}; choose another folder, or "
                        "the pool that it was begun with"
                    )
                at, names = torch.tensor([places[name] for name in before]), before
            else:
                at = self.pool.sample(SAMPLE, torch.zeros(0, dtype=torch.int64), seed)
                names = self.pool.take(at, engine)[1]
            self.positions: list[int] = at.tolist()  # in the pool, by position on the page
            self.data = self._data(names, self._content(at, names, engine))

    @property
    def embedding(self) -> str:
        """What the items are learnt from."""
        return self.pool.manifest.reading.encoder or "vectors"

    @property
    def fingerprint(self) -> str:
        """Of the pool, whatever is held of it."""
        reading = self.pool.manifest.reading
        return f"{reading.root}|{reading.column}|{reading.id}"

    def joined(self, assignment: Assignment) -> "Holding":
        """It, with whoever hands out the items."""
        self.assignment = assignment
        return self

    def run(self, order: Order, tell: Tell) -> Path:
        """As `Worker.run`: score the pool, hold the best of it."""
        path = self.folder / "held.pt"
        save_snapshot(refreshed(self._score(order, tell), order), path)
        return path

    def grown(self, before: Snapshot, order: Order, tell: Tell) -> Snapshot:
        """The same, or with the best candidates of now where enough labels have come."""
        due = abs(len(order.labels) - self._scored) >= self.every
        return self._score(order, tell, before.facts.get("mixture")) if due else before

    def stop(self) -> None:
        """There is no process between two scorings."""

    close = stop

    def _score(self, order: Order, tell: Tell, mixture: Any = None) -> Snapshot:
        tell("scoring the pool", 0.0)
        at = torch.tensor([self.positions[p] for p, _ in order.labels], dtype=torch.int64)
        numbers = torch.tensor([c for _, c in order.labels], dtype=torch.int64)
        told = Labelled(at, numbers, tuple(map(str, range(max(order.classes, 2)))))
        self.pool.progress = lambda stage, done, total: tell("scoring the pool", done / max(1, total))
        with at_work(self._executor) as engine:
            pool = self.pool.by(engine)
            held = pool.hold(told, strategy=self.strategy, evaluation=SAMPLE, candidates=CANDIDATES, seed=self.seed)
            self._grow(held.positions, held.names, engine)
            more = self._answered(held.positions)
            rows = pool.take(more, engine)[0]
        self._scored = len(order.labels)
        place = {p: i for i, p in enumerate(self.positions)}
        # Criteria sum over the first ones: the random sample; labelled items come last.
        first, weights = len(told.positions), held.model.weights()
        turned = torch.cat([torch.arange(first, len(held.positions)), torch.arange(first)])
        points = torch.tensor([place[p] for p in torch.cat([held.positions[turned], more]).tolist()])
        units = torch.cat([held.units[turned], held.model.unit(rows)])
        facts = {"labels": 0, "map": mapped(points, {"features": units})} | ({"mixture": mixture} if mixture else {})
        return Snapshot(
            round=0,
            points=points,
            outputs=torch.zeros((len(points), 2), dtype=torch.float64),
            kernel=None,
            features=None,
            labels={},
            noise=weights.noise,
            strategy=self.strategy,
            evaluation=held.evaluation,
            facts=facts,
            units=units,
            weights=weights.weights,
        )

    def _answered(self, held: Tensor) -> Tensor:
        """(q,) items that were answered, or lent to somebody, while the pool was scored, and are not held otherwise."""
        if self.assignment is None:
            return held[:0]
        with self.assignment.lock:
            now = {*self.assignment.tally.labels, *self.assignment.journal.leases()}
            at = torch.tensor([self.positions[p] for p in sorted(now)], dtype=torch.int64)
        return at[~torch.isin(at, held)]

    def _grow(self, positions: Tensor, names: Sequence[str], engine: Any) -> None:
        """Take in what is not held yet."""
        known = set(self.positions)
        new = [i for i, p in enumerate(positions.tolist()) if p not in known]
        if not new or self.assignment is None:
            return
        at, called = positions[new], [names[i] for i in new]
        content = self._content(at, called, engine)
        with self.assignment.lock:
            self.positions += at.tolist()
            self.data = self._data([*self.data.ids, *called], content, self.data)
            self.assignment.grow(self.data)

    def _content(self, at: Tensor, names: Sequence[str], engine: Any) -> list[dict[str, Any]]:
        """What people see of the items, but for pictures, which are read when they are looked at."""
        reading, parts = self.pool.manifest.reading, self.pool.by_part(at)
        if reading.kind in ("pictures", "npy"):
            return [{"item": name} for name in names]
        entries = {p: self.pool.entries[p] for p in parts}
        tasks = [
            (entries[p].part.source, len(some), (reading, entries[p].part, self.pool.rows_of(p, at[some])))
            for p, some in parts.items()
        ]
        shown: list[dict[str, Any]] = [{}] * len(at)
        for some, rows in zip(parts.values(), each(engine, "read items", contents, tasks), strict=True):
            for place, row in zip(some, rows, strict=True):
                shown[place] = row
        return shown

    def _data(self, names: Sequence[str], content: list[dict[str, Any]], before: Data | None = None) -> Data:
        """All that is held, as any data set; new items follow the old ones."""
        reading = self.pool.manifest.reading
        images, rows, n = None, None, len(names)
        if reading.kind == "pictures":
            images = Pictures(reading.root, tuple(names))
        else:
            old = before.rows.columns if before is not None and before.rows is not None else {}
            columns = {name: [*old.get(name, []), *(row[name] for row in content)] for name in content[0]}
            text = reading.column if reading.kind == "text" else next((c for c in TEXTS if c in columns), None)
            rows = Rows(columns, text)
        if before is not None:
            return replace(before, ids=tuple(names), images=images, rows=rows)
        name = Path(self.pool.store).name
        notes = (f"{self.pool}; {n} random ones are held first, the best candidates join them",)
        none = torch.zeros(0, dtype=torch.int64)
        classes, empty = self._classes, torch.zeros((n, 1))
        return Data(name, classes, none, tuple(names), "vector", notes, images, (1,), lambda: empty, rows=rows)


def _stored(path: Path) -> list[str]:
    """What a record of labels calls its items, by position; nothing if there is none."""
    if not path.exists():
        return []
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as db:
        try:
            return [str(row[0]) for row in db.execute("SELECT item FROM items ORDER BY position")]
        except sqlite3.Error:  # the journal says what is wrong with it
            return []
