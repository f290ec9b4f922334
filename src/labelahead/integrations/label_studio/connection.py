"""From an address and a token to a project, its folder and its tasks."""

from collections.abc import Callable
from dataclasses import dataclass
from os import environ
from pathlib import Path

from labelahead.integrations.label_studio.bridge import Bridge
from labelahead.integrations.label_studio.client import LabelStudioClient
from labelahead.integrations.label_studio.image_text import PLACE
from labelahead.integrations.label_studio.interface import Interface, read_interface
from labelahead.integrations.label_studio.task_importer import TaskImporter
from labelahead.integrations.label_studio.tasks import PICTURES, Fetched, claim, fetch
from labelahead.server.large_pool import Holding
from labelahead.server.service import LabellingService

__all__ = ["Connection"]


@dataclass(frozen=True)
class Connection:
    """A project that can be served, and the folder that is its own."""

    studio: LabelStudioClient
    interface: Interface
    folder: Path

    @classmethod
    def made(
        cls, url: str, key: str, project: int, folder: Path | None = None, *, pool: bool = False
    ) -> "Connection":
        """Ask what the project is; what cannot be served is refused before anything is written.

        pool: whether its items are those of a pool of millions.
        """
        studio = LabelStudioClient(url, key, project)
        about = studio.project()
        interface = read_interface(str(about["label_config"]))
        place = folder or Path(f"labels-label-studio-{project}")
        claim(place, about, pool=pool)
        return cls(studio, interface, place)

    @property
    def labelling_url(self) -> str:
        """Where annotators begin."""
        return f"{self.studio.url}/projects/{self.studio.number}/data"

    def fetch(self, tell: Callable[[int, int], None]) -> Fetched:
        """The tasks as files."""
        environ[PLACE] = str(
            (self.folder / PICTURES).resolve()
        )  # for the process that looks at them
        return fetch(self.studio, self.interface, self.folder, tell)

    def bridge(
        self, assignment: LabellingService, fetched: Fetched, *, predictions: bool
    ) -> Bridge:
        """Between this project and an open session."""
        return Bridge(
            self.studio, self.interface, assignment, fetched.tasks, predictions=predictions
        )

    def pool_bridge(
        self, assignment: LabellingService, supply: TaskImporter, *, predictions: bool
    ) -> Bridge:
        """Between this project and a session that holds a part of a pool of millions."""
        return Bridge(
            self.studio,
            self.interface,
            assignment,
            supply.tasks,
            predictions=predictions,
            supply=supply,
        )

    def supply(self, holding: Holding, pictures_at: str | None = None) -> TaskImporter:
        """Items of such a pool as tasks."""
        return TaskImporter(self.studio, self.interface, holding, pictures_at)
