"""Connect to a Label Studio project: its folder, tasks and bridge."""

from collections.abc import Callable
from dataclasses import dataclass
from os import environ
from pathlib import Path

from labelahead.errors import InputError
from labelahead.integrations.label_studio.bridge import Bridge
from labelahead.integrations.label_studio.client import LabelStudioClient
from labelahead.integrations.label_studio.image_text import PICTURES_VARIABLE
from labelahead.integrations.label_studio.interface import CLASSES, Interface, read_interface
from labelahead.integrations.label_studio.task_importer import TaskImporter
from labelahead.integrations.label_studio.tasks import (
    PARALLEL_DOWNLOADS,
    PICTURES_FOLDER,
    FetchedTasks,
    claim_folder,
    fetch_tasks,
)
from labelahead.server.large_pool import LargePoolWorker
from labelahead.server.service import LabellingService

__all__ = ["Connection"]


@dataclass(frozen=True)
class Connection:
    """A project that can be served, and its folder."""

    studio: LabelStudioClient
    interface: Interface
    folder: Path

    @classmethod
    def open(
        cls, url: str, key: str, project: int, folder: Path | None = None, *, pool: bool = False
    ) -> "Connection":
        """Connect to a project; raise, before anything is written, if it cannot be served.

        pool: whether its items come from an out-of-core pool.
        """
        studio = LabelStudioClient(url, key, project)
        about = studio.get_project()
        interface = read_interface(str(about["label_config"]))
        if pool and interface.task != CLASSES:
            raise InputError(
                f"the project's answers are of the task {interface.task}, but items of an "
                "out-of-core pool have one class each; expected a <Choices> of single choice, or "
                "the items as tasks and no --pool"
            )
        place = folder or Path(f"labels-label-studio-{project}")
        claim_folder(place, about, pool=pool)
        return cls(studio, interface, place)

    @property
    def labelling_url(self) -> str:
        """Return the URL where annotators start."""
        return f"{self.studio.url}/projects/{self.studio.number}/data"

    def fetch_tasks(
        self, on_progress: Callable[[int, int], None], parallel_downloads: int = PARALLEL_DOWNLOADS
    ) -> FetchedTasks:
        """Download the tasks as files."""
        environ[PICTURES_VARIABLE] = str(
            (self.folder / PICTURES_FOLDER).resolve()
        )  # for the worker process
        return fetch_tasks(
            self.studio,
            self.interface,
            self.folder,
            on_progress,
            parallel_downloads=parallel_downloads,
        )

    def make_bridge(
        self, service: LabellingService, fetched: FetchedTasks, *, predictions: bool
    ) -> Bridge:
        """Create the bridge between this project and a session."""
        return Bridge(self.studio, self.interface, service, fetched.tasks, predictions=predictions)

    def make_pool_bridge(
        self, service: LabellingService, importer: TaskImporter, *, predictions: bool
    ) -> Bridge:
        """Create the bridge between this project and a session on an out-of-core pool."""
        return Bridge(
            self.studio,
            self.interface,
            service,
            importer.tasks,
            predictions=predictions,
            importer=importer,
        )

    def make_importer(
        self, pool_worker: LargePoolWorker, pictures_at: str | None = None
    ) -> TaskImporter:
        """Create the importer of pool items as tasks."""
        return TaskImporter(self.studio, self.interface, pool_worker, pictures_at)
