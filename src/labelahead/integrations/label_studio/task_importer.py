"""Import items of an out-of-core pool as tasks when they are about to be queried.

A project cannot have millions of tasks. It has the items that were queried, those that will be
queried next, and tasks that users imported themselves. The data of a task contain the item's id.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

from labelahead.data.file_tree import UnreadableItemsError
from labelahead.data.label_entries import ITEM_ID_FIELD
from labelahead.data.records import format_id, rename_clashing_columns
from labelahead.errors import InputError
from labelahead.integrations.label_studio.client import LabelStudioClient, Unreachable
from labelahead.integrations.label_studio.interface import Interface
from labelahead.server.large_pool import LargePoolWorker, PoolImages

__all__ = ["TaskImporter"]

# Fields of a task's data that may hold the id of its item: ours, that of 0.2, and that of `pool query
# --format json`.
ID_FIELDS = (ITEM_ID_FIELD, "item", "id")


class TaskImporter:
    """The tasks of a project that are items of a pool; not thread-safe.

    pictures_at: URL prefix of pictures; None uses the addresses of a remote pool, and uploads local
    pictures.
    """

    def __init__(
        self,
        studio: LabelStudioClient,
        interface: Interface,
        pool_worker: LargePoolWorker,
        pictures_at: str | None = None,
    ) -> None:
        self.studio, self.pool_worker, self.pictures_at = studio, pool_worker, pictures_at
        self.set_interface(interface)
        self.tasks: set[int] = set()  # ids of all tasks of the project
        self.foreign_tasks = 0  # number of tasks that are not in the pool
        self._pool_positions: dict[int, int] = {}  # task id -> position in the pool
        self._may_have_unseen_tasks = False  # after an import without a reply
        self.read_tasks()

    def read_tasks(self) -> None:
        """Read all tasks of the project, and find their items."""
        names = {
            int(task["id"]): self._find_item_name(task["data"]) for task in self.studio.list_tasks()
        }
        self.tasks, self._may_have_unseen_tasks = set(names), False
        positions_by_id = dict(
            zip(self.pool_worker.data.ids, self.pool_worker.positions, strict=False)
        )  # it may be growing
        new = {
            name
            for task, name in names.items()
            if task not in self._pool_positions and name and name not in positions_by_id
        }
        places = positions_by_id | self.pool_worker.find_positions(sorted(new))
        self._pool_positions |= {
            task: places[name] for task, name in names.items() if name in places
        }
        self.foreign_tasks = len(self.tasks - self._pool_positions.keys())

    def __contains__(self, task: int) -> bool:
        """Return whether a task is an item of the pool, loaded or not."""
        return task in self._pool_positions

    def map_positions(self) -> dict[int, int]:
        """Return the page positions of the tasks whose items are loaded."""
        page_positions = {at: position for position, at in enumerate(self.pool_worker.positions)}
        return {
            task: page_positions[at]
            for task, at in self._pool_positions.items()
            if at in page_positions and task in self.tasks
        }

    def hold_items(self, tasks: Iterable[int]) -> None:
        """Load the items of these labelled tasks, if they are in the pool."""
        self.pool_worker.add_items(
            {self._pool_positions[task] for task in tasks if task in self._pool_positions}
        )

    def import_items(self, positions: Sequence[int]) -> dict[int, str]:
        """Import these items as tasks; return the positions that cannot be read, and why."""
        if self._may_have_unseen_tasks:
            self.read_tasks()
            task_positions = set(self.map_positions().values())
            positions = [p for p in positions if p not in task_positions]
        rows, failed = self._build_rows(positions)
        if rows:
            self._may_have_unseen_tasks = True  # until Label Studio has replied with the task ids
            made = self.studio.add_tasks(list(rows.values()))
            if len(made) != len(rows):
                raise Unreachable(
                    f"{self.studio.url} did not return the ids of the tasks of {len(rows)} items"
                )
            self._pool_positions |= {
                task: self.pool_worker.positions[p] for task, p in zip(made, rows, strict=True)
            }
            self.tasks |= set(made)
            self._may_have_unseen_tasks = False
        return failed

    # --- data of tasks ---

    def _find_item_name(self, data: Mapping[str, Any]) -> str:
        """Return the name of a task's item from our field or the pool's id column, or ""."""
        ours, *others = ID_FIELDS
        own = self.pool_worker.pool.manifest.schema.id
        fields = (ours, *([own] if own is not None else []), *others)
        return next((text for key in fields if (text := format_id(data.get(key)))), "")

    def set_interface(self, interface: Interface) -> None:
        """Set the fields that the project shows; raise if the items do not have them.

        A single text field may have another name in the project.
        """
        data = self.pool_worker.data
        if data.sounds is not None:
            raise InputError(
                "the pool holds sounds, and Label Studio projects take pictures, texts and rows "
                "from a pool; expected no --pool and the sounds as tasks, another store, or the "
                "page: labelahead label STORE"
            )
        have = {
            ITEM_ID_FIELD,
            *(data.rows.columns if data.rows is not None else interface.pictures[:1]),
        }
        missing = [field for field in (*interface.pictures, *interface.texts) if field not in have]
        text = ""
        if (
            data.rows is not None
            and data.rows.text
            and missing in [[field] for field in interface.texts]
        ):
            text = missing.pop()
        if missing or (data.images is not None and not interface.pictures):
            found = ", ".join(f"${field}" for field in missing) or "no picture"
            fields = "a picture" if data.images is not None else ", ".join(sorted(have))
            raise InputError(
                f"the project shows {found}, but items of the pool have {fields}; change the "
                "labelling configuration"
            )
        self._picture, self._text = next(iter(interface.pictures), ""), text

    def _build_rows(
        self, positions: Sequence[int]
    ) -> tuple[dict[int, dict[str, Any]], dict[int, str]]:
        """Return the task data of each position, and the positions that cannot be read."""
        data = self.pool_worker.data
        if isinstance(data.images, PoolImages):
            addresses, failed = self._find_addresses(data.images, positions)
            return {
                p: {ITEM_ID_FIELD: data.ids[p], self._picture: where}
                for p, where in addresses.items()
            }, failed
        assert data.rows is not None
        rows = {
            p: {name: _to_json_value(value) for name, value in data.rows.get_row(p)}
            for p in positions
        }
        if self._text and data.rows.text:
            rows = {p: {**row, self._text: row[data.rows.text]} for p, row in rows.items()}
        names = rename_clashing_columns(list(data.rows.columns), (ITEM_ID_FIELD,))
        return {
            p: {ITEM_ID_FIELD: data.ids[p]}
            | {names.get(name, name): value for name, value in row.items()}
            for p, row in rows.items()
        }, {}

    def _find_addresses(
        self, pictures: PoolImages, positions: Sequence[int]
    ) -> tuple[dict[int, str], dict[int, str]]:
        """Return the address of each picture for Label Studio, and what cannot be read."""
        if self.pictures_at is not None:
            return {p: self.pictures_at + quote(pictures.names[p]) for p in positions}, {}
        if not pictures.root.startswith("file://"):
            return {p: pictures.address(p) for p in positions}, {}
        files, failed = dict[int, tuple[str, bytes]](), dict[int, str]()
        for p in positions:
            try:
                files[p] = f"{p}{PurePosixPath(pictures.names[p]).suffix.lower()}", pictures.file(p)
            except UnreadableItemsError as error:
                failed[p] = str(error)
        addresses = self.studio.upload_files(list(files.values())) if files else []
        return dict(zip(files, addresses, strict=True)), failed


def _to_json_value(value: Any) -> Any:
    """Convert a cell to a JSON value."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return json.loads(json.dumps(value, default=str))
